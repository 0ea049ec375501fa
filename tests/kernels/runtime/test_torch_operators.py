"""Operators of torch.library, and modules that torch.compile takes as one graph, without a GPU."""

from __future__ import annotations

import shutil

import pytest
from programs import run

CALLS = (
    "activations_as_outside",
    "norms_as_outside",
    pytest.param("added_as_outside", marks=pytest.mark.full),
    "linear_as_outside",
    "attention_as_outside",
    pytest.param("feed_forward_as_outside", marks=pytest.mark.full),
    pytest.param("batched_as_outside", marks=pytest.mark.full),
    pytest.param("losses_as_outside", marks=pytest.mark.full),
    pytest.param("additive_as_outside", marks=pytest.mark.full),
    pytest.param("others_as_outside", marks=pytest.mark.full),
    "autocast_as_outside",
    "both_passes_draw_alike",
    "both_passes_are_what_they_say",
    pytest.param("both_passes_are_so_for_other_calls", marks=pytest.mark.full),
    "left_to_the_compiler",
    "other_calls",
    "dropout_is_replayed",
    "operators_are_what_they_say",
    "tensors_without_values",
    "layers_without_a_gpu",
    "refusals_in_own_words",
    "breaks_are_found",
    "faults_are_found",
)


@pytest.mark.parametrize("call", CALLS)
def test_in_the_interpreter(call):
    assert run("interpreted_whole.py", call) == []


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed, by which Inductor compiles")
@pytest.mark.parametrize("call", ["by_inductor", pytest.param("others_by_inductor", marks=pytest.mark.full)])
def test_inductor_gives_the_same_bits(call):
    assert run("interpreted_whole.py", call) == []
