"""What a report of `optimize` says: each layer once, each caveat once, and no line or sentence too long."""

from __future__ import annotations

import re

import pytest
import torch

import selector
from kernel_selector.kernels import registry
from selector.models.rewriting.report import WIDTH, LeftAlone, Replaced, Report, each_once

PROBLEM = registry.operator("linear").problem(rows=8, in_features=4, out_features=4)
OTHER = registry.operator("gelu").problem(elements=8)


def left(*paths: str, why: str = "torch's own is chosen") -> list[LeftAlone]:
    return [LeftAlone(path=path, problem=PROBLEM, why=why) for path in paths]


@pytest.mark.parametrize(
    ("paths", "shown"),
    [
        (["h.0.mlp", "h.1.mlp", "h.2.mlp"], ["h.0-2.mlp"]),
        (["h.10.mlp", "h.2.mlp", "h.9.mlp", "h.4.mlp"], ["h.2,4,9-10.mlp"]),
        (["h.0.ln_1", "h.0.ln_2", "h.1.ln_1"], ["h.0-1.ln_1, h.0.ln_2"]),
        (["0", "1", "3"], ["0-1,3"]),
        (["a.0.b.0", "a.0.b.1"], ["a.0.b.0, a.0.b.1"]),
        (["", "head"], ["the model itself, head"]),
    ],
)
def test_layers_stand_once_below_their_reason(paths: list[str], shown: list[str]) -> None:
    text = str(Report(first_line="x", replaced=(), left_alone=tuple(left(*paths)), notes=()))
    assert text.splitlines()[3:] == ["  linear: torch's own is chosen", *(f"    {one}" for one in shown)]


def test_what_was_replaced_comes_before_what_was_not_and_notes_come_last() -> None:
    replaced = Replaced(path="a", problem=OTHER, implementation="one_bit", why="by exact")
    report = Report(
        first_line="A step took 2 ms.",
        replaced=(replaced,),
        left_alone=tuple(left("b", why="word " * 30)),
        notes=("note " * 30,),
    )
    lines = str(report).splitlines()
    assert lines[0] == "A step took 2 ms."
    assert lines.index("Replaced:") < lines.index("    a") < lines.index("Left alone:") < lines.index("    b")
    assert lines[-1].startswith("note")
    assert max(map(len, lines)) <= WIDTH + 2


def test_each_caveat_is_said_once() -> None:
    one, other = "from dropout=0.0 instead of 0.1", "head_dim=16 is outside"
    caveats = [f"Extrapolated: {one}.", f"Extrapolated: {one}; {other}.", "Measured on another host: a; b."]
    assert each_once(caveats) == [
        f"Extrapolated: {one}.",
        f"Extrapolated: {other}.",
        "Measured on another host: a; b.",
    ]


def test_no_sentence_is_longer_than_two_lines() -> None:
    model = torch.nn.Sequential(
        *(torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True) for _ in range(2))
    )
    report = selector.optimize(model, torch.randn(2, 4, 16))
    assert {one.path for one in report.left_alone} >= {"0.self_attn", "1.self_attn"}
    text = str(report)
    assert re.search(r"^    0-1\.self_attn", text, re.MULTILINE)
    sentences = re.split(r"(?<=[.:]) |\n(?!    )", text)
    assert max(len(" ".join(one.split())) for one in sentences) <= 2 * WIDTH
