"""Tables of the documents: what they say of devices and code is what choices and versions say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kernel_selector.kernels import registry
from scripts.tables import headline, parts, supported
from selector import Selector
from selector.models import layer_kinds
from selector.selection import shipped

ROOT = Path(__file__).parents[2]
EVIDENCE = {
    "nvidia-h200": ("exact", r"[\d,]+ measurements"),
    "nvidia-h100-pcie": ("transfer", "those of NVIDIA H100 80GB HBM3, carried over"),
    "nvidia-l4": ("transfer", "those of NVIDIA H200, carried over to another compute capability"),
}


@pytest.mark.parametrize("device", EVIDENCE)
def test_choices_rest_on_what_the_table_says(device: str) -> None:
    source, words = EVIDENCE[device]
    (line,) = re.findall(rf"^.*\| `{device}` \|.*$", (ROOT / "docs/supported.md").read_text(), re.MULTILINE)
    assert re.fullmatch(words, line.split(" | ")[4])
    question = {"hidden": 1024, "batch": 16, "seq": 50, "dtype": "bfloat16"}
    assert Selector(shipped.unpacked()).choose("lstm", **question, device=device).source == source


def test_every_recognised_class_has_operators() -> None:
    known = layer_kinds.known_classes()
    assert {name for operators in known.values() for name in operators} <= set(registry.operators())
    assert "`nn.LSTM`, `nn.GRU`, `nn.RNN` | `lstm`, `gru`, `rnn`" in supported.classes()


def test_a_caption_says_how_much_of_the_code_has_changed() -> None:
    run = {"commit": "c0ffee1", "started_at": "2026-11-21T00:00:00+00:00", "device": {"host": "host"}}
    now = registry.implementations("relu")["torch_relu"].version
    result = {"device": "card", "environment": {"driver": "1", "torch": "2"}}
    same = {**run, "versions": {"relu.torch_relu": now}}
    other = {**run, "versions": {"relu.torch_relu": now, "relu.gone": "0123456789ab"}}
    assert "all implementations are the same today" in parts.caption({**result, "runs": [same]})
    assert "1 of 2 implementations have changed since" in parts.caption({**result, "runs": [same, other]})


def test_the_headline_names_files_that_are_there() -> None:
    files = re.findall(r"\((benchmarks/results/[^)]+)\)", headline.overview(ROOT / "benchmarks/results"))
    assert len(files) == 3
    assert all((ROOT / file).is_file() for file in files)
