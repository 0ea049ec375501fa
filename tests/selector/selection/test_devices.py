"""What the argument `device` may be."""

from dataclasses import replace

import pytest
import torch

from kernel_selector.kernels.contract import Device, UnknownDevice
from kernel_selector.kernels.devices import known_devices
from selector import InvalidRequest
from selector.selection.devices import model_name, resolve
from tests.selector import replay

pytestmark = pytest.mark.usefixtures("here")


@pytest.mark.parametrize("asked", [None, "cpu", torch.device("cpu")])
def test_this_machine(asked):
    found = resolve(asked)
    assert (found.device, found.torch_device) == (replay.HERE, "cpu")


def test_measured_rates_are_used_again():
    stored = replace(replay.HERE, launch_us=9.0)
    assert resolve("cpu", [stored]).device.launch_us == 9.0
    other = replace(stored, host="elsewhere")
    assert resolve("cpu", [other]).device == replay.HERE


@pytest.mark.parametrize("asked", ["h200", "H200", "NVIDIA H200", "nvidia-h200"])
def test_known_device_that_is_elsewhere(asked):
    found = resolve(asked)
    assert (found.device, found.torch_device) == (known_devices()["nvidia-h200"], None)


def test_measured_device_that_is_elsewhere_brings_its_rates_and_no_host():
    """Nobody knows which host the one that was asked about will have: those of all hosts count alike."""
    measured = replace(known_devices()["nvidia-h200"], host="Other", launch_us=3.3)
    assert resolve("h200", [measured]).device == replace(measured, host="")


def test_device_in_person():
    device = Device(name="Unseen", kind="cuda")
    assert resolve(device).device is device
    assert resolve(device).torch_device is None
    assert resolve(replay.HERE).torch_device == "cpu"


@pytest.mark.parametrize("asked", ["h2000x", "cuda:99", "cuda", "tpu", ""])
def test_unknown(asked):
    with pytest.raises(UnknownDevice, match="cpu"):
        resolve(asked)


@pytest.mark.parametrize("asked", [7, 1.5, True, ["cpu"], {}])
def test_no_name(asked):
    with pytest.raises(InvalidRequest, match="expected a name"):
        resolve(asked)


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("NVIDIA H200", "H200"),
        ("NVIDIA H200 NVL", "H200"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA GeForce RTX 4090", "RTX4090"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX6000"),
        ("Tesla V100-SXM2-16GB", "V100"),
    ],
)
def test_what_clusters_call_a_gpu(name, model):
    assert model_name(Device(name=name, kind="cuda")) == model
