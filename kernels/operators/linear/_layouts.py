"""The layouts of cuBLAS's products in words."""

from __future__ import annotations

from ...contract import Problem


def in_words(problem: Problem, why: str, *, forward: str, x_gradient: str, weight_gradient: str) -> str:
    """One line for each product of a problem with its layout, and one for the schedule and the reason."""
    lines = [f"forward x W^T: {forward}."]
    if problem["mode"] == "training":
        lines += [f"gradient of x, dz W: {x_gradient}.", f"gradient of W, dz^T x: {weight_gradient}."]
    return "\n".join([*lines, f"Tiles and schedules are cuBLAS's own choice; {why}."])
