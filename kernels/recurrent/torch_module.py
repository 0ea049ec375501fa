"""Arguments of torch's own modules for a problem, and what cuDNN refuses or gets wrong."""

from __future__ import annotations

from typing import Any

import torch

from ..contract import Device, Problem

LONGEST = 65535  # steps of a sequence


def unsupported_by_cudnn(problem: Problem, device: Device) -> str | None:
    """Reason why cuDNN refuses a problem or gets it wrong, or None."""
    if device.kind == "cuda" and problem["seq"] > LONGEST:
        return f"torch's cuDNN call fails for more than {LONGEST} steps"
    return _wrong_by_cudnn(problem, device)


def _wrong_by_cudnn(problem: Problem, device: Device) -> str | None:
    """Where results are wrong on Hopper by a tenth to the whole of their size, and no warning is given.

    Found by `python -m benchmarks.kernels.cudnn_errors` with torch 2.11 and cuDNN 9.19: every problem of
    these regions failed the gate, and none outside them. A region's refusal goes when that finds nothing in
    it.
    """
    if device.compute_capability != (9, 0) or problem["dtype"] != "float16":
        return None
    hidden, batch = problem["hidden"], problem["batch"]
    if problem["packed"] or batch % 8:
        return None
    if problem.operator == "rnn":
        backwards = problem["bidirectional"] and problem["mode"] == "training"
        if backwards and 32 < hidden <= 256 and hidden % 32 == 0:
            return (
                "cuDNN 9.19 gives wrong gradients of the second direction on this GPU in float16 when "
                "hidden, between 64 and 256, is a multiple of 32 and batch of 8"
            )
    elif 32 < hidden < 192 and hidden % 8 == 0 and hidden % 32:
        if problem.operator == "gru" and hidden in (48, 72):
            return None
        return (
            "cuDNN 9.19 gives wrong results on this GPU in float16 when hidden, between 32 and 192, is a "
            "multiple of 8 but not of 32, and batch a multiple of 8"
        )
    return None


def arguments(problem: Problem) -> dict[str, Any]:
    """Arguments of nn.LSTM, nn.GRU or nn.RNN for a problem."""
    own = {"lstm": {"proj_size": "projection"}, "gru": {}, "rnn": {"nonlinearity": "nonlinearity"}}
    return {
        "input_size": problem["input"],
        "hidden_size": problem["hidden"],
        "num_layers": problem["layers"],
        "bias": problem["bias"],
        "batch_first": problem["batch_first"],
        "dropout": problem["dropout"],
        "bidirectional": problem["bidirectional"],
        "dtype": getattr(torch, problem["dtype"]),
        **{argument: problem[name] for argument, name in own[problem.operator].items()},
    }
