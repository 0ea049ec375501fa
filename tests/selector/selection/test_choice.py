"""Modules that a choice builds, and where."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernel_selector.kernels.contract import UnknownDevice, UnsupportedProblem
from selector.selection import devices
from selector.selection.choice import Choice
from selector.selection.devices import Resolved, named
from tests.selector import replay

SIZES = {"hidden": 64, "batch": 8, "dtype": "bfloat16"}
A100 = "nvidia-a100-sxm4-80gb"


@pytest.mark.parametrize("implementation", ["persistent", "torch_lstm"])
def test_a_gpu_that_is_elsewhere_is_no_place_to_build_on(selector_of, implementation):
    """Neither what only that GPU runs nor what a CPU could: nobody asked for one."""
    choice = selector_of().choose(**SIZES, device="h200", override=implementation)
    for asked in (choice, Choice.from_dict(choice.to_dict())):
        with pytest.raises(
            UnknownDevice, match=r"^lstm\.\w+ is chosen for NVIDIA H200, and .* has cpu\."
        ) as raised:
            asked.build()
        assert "build(device='cpu')" in str(raised.value)
    (caveat,) = (one for one in choice.caveats if "build()" in one)
    assert caveat == "NVIDIA H200 is not in this machine: build() needs it, or a `device`."


def test_where_to_build_can_be_said(selector_of):
    """So that a module that a CPU cannot compute is made there, and moved to its GPU with its weights."""
    choice = selector_of().choose(**SIZES, device="h200", override="persistent")
    for place in ("cpu", torch.device("cpu"), "meta"):
        assert {one.device.type for one in choice.build(device=place).parameters()} == {
            torch.device(place).type
        }


def test_another_gpu_than_the_choices_is_asked_what_it_can_compute(selector_of, monkeypatch):
    choice = selector_of().choose(**SIZES, device="h200", override="persistent")
    monkeypatch.setattr(devices, "local_names", lambda: ("cpu", "cuda:0"))
    monkeypatch.setattr(devices, "_identified", lambda _: named(A100, ()))
    for place in ("cuda", "cuda:0", torch.device("cuda", 0)):
        with pytest.raises(UnsupportedProblem, match=r"^persistent cannot compute .* on NVIDIA A100.*: .*"):
            choice.build(device=place)


def test_a_gpu_that_is_not_there_is_named_with_what_is(selector_of):
    choice = selector_of().choose(**SIZES, device="cpu")
    for place in ("cuda", "cuda:7", "nonesuch"):
        with pytest.raises(UnknownDevice, match=place):
            choice.build(device=place)


def test_a_choice_of_another_machine_is_built_on_the_same_gpu_of_this_one(selector_of, monkeypatch):
    choice = Choice.from_dict(selector_of().choose(**SIZES, device="h200").to_dict())
    monkeypatch.setattr(devices, "_gpus_here", lambda: {choice.device.key: "meta"})  # a GPU for this test
    assert {one.device.type for one in choice.build().parameters()} == {"meta"}


def test_a_choice_for_another_processor_is_built_on_this_one(selector_of):
    elsewhere = Resolved(replace(replay.HERE, name="Another processor"), None)
    choice = selector_of().choose(**SIZES, device=elsewhere.device)
    assert choice.torch_device is None
    assert {one.device.type for one in choice.build().parameters()} == {"cpu"}
    assert (
        "Another processor is not in this machine: here, build() makes the module on the CPU."
        in choice.caveats
    )
