"""What the argument `device` may be."""

import re
from dataclasses import replace

import pytest
import torch

from kernel_selector.kernels.contract import Device, UnknownDevice
from kernel_selector.kernels.devices import known_devices
from selector import InvalidRequest
from selector.selection import devices
from selector.selection.devices import resolve
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


def test_what_one_does_not_say_of_a_gpu_the_next_one_does():
    """A GPU without the size of its memory held any job, and took any failure for one of memory."""
    probed = replace(H200, host="a", copy_bytes_per_s=4e12, matmul_flops_per_s={"float32": 5e13})
    silent = replace(probed, host="b", memory_bytes=None, l2_bytes=None, matmul_flops_per_s={"float16": 7e14})
    unknown = Device(name="Unseen", kind="cuda", host="b")
    found, other, last, cpu = devices.completed([silent, probed, unknown, replay.HERE])
    assert (found.memory_bytes, found.l2_bytes, found.host) == (H200.memory_bytes, H200.l2_bytes, "b")
    assert found.matmul_flops_per_s.items() >= {"float32": 5e13, "float16": 7e14}.items()
    assert other.matmul_flops_per_s["float32"] == 5e13
    assert (last, cpu) == (unknown, replay.HERE)  # of processors each host is another one
    (alone,) = devices.completed([replace(known_devices()["tesla-t4"], memory_bytes=None)])
    assert alone.memory_bytes == known_devices()["tesla-t4"].memory_bytes


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


H200 = known_devices()["nvidia-h200"]


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ({"l2_bytes": 2**40}, "l2_bytes=.* is no less than memory_bytes"),
        ({"multiprocessors": 0}, "multiprocessors=0"),
        ({"multiprocessors": 13}, "multiprocessors=13, and a NVIDIA H200 has 132"),
        ({"compute_capability": (8, 0)}, "compute_capability=.*has .9, 0."),
        ({"copy_bytes_per_s": 4.8e15}, "copy_bytes_per_s=4.8e.15 is not between 0 and"),
        ({"matmul_flops_per_s": {"bfloat16": -1.0}}, "matmul_flops_per_s"),
        ({"matmul_flops_per_s": {"bfloat16": 1e13, "float32": 8e14}}, "products take longer in bfloat16"),
    ],
)
def test_a_gpu_whose_figures_contradict_each_other_is_refused(figures, words):
    with pytest.raises(InvalidRequest, match=f"contradict each other: {words}"):
        resolve(replace(H200, **figures))


def test_the_figures_of_every_known_gpu_agree():
    for device in known_devices().values():
        devices.check(device)


def test_of_several_variants_the_commonest_is_taken_and_named():
    found = resolve("a100")
    assert found.device == known_devices()["nvidia-a100-sxm4-80gb"]
    assert found.note == "a100: taken as NVIDIA A100-SXM4-80GB."
    assert not resolve("h200").note


def test_of_several_variants_one_that_was_measured_goes_before_the_commonest():
    measured = replace(known_devices()["nvidia-a100-pcie-40gb"], host="Other", launch_us=3.3)
    found = resolve("a100", [measured])
    assert found.device == replace(measured, host="")
    assert found.note == "a100: taken as NVIDIA A100-PCIE-40GB."


def test_of_several_variants_the_one_in_this_machine_goes_first(monkeypatch):
    nvl, pcie = (known_devices()[key] for key in ("nvidia-h100-nvl", "nvidia-h100-pcie"))
    monkeypatch.setattr(devices, "_gpus_here", lambda: {nvl.key: "cuda:0"})
    monkeypatch.setattr(devices, "_local", lambda name, _: devices.Resolved(nvl, name))
    found = resolve("h100", [replace(pcie, host="Other")])
    assert (found.device, found.torch_device, found.note) == (nvl, "cuda:0", f"h100: taken as {nvl.name}.")


def test_a_measured_device_is_known_by_its_whole_name_whatever_else_that_may_mean():
    measured = Device(name="A100", kind="cuda")
    found = resolve("a100", [measured])
    assert (found.device, found.note) == (measured, "")


@pytest.mark.parametrize("asked", ["mi300x", "gaudi2", "m3", "tpu"])
def test_a_device_without_implementations_is_refused_in_words(asked):
    with pytest.raises(UnknownDevice, match=r"only NVIDIA GPUs and CPUs .* In this machine: cpu") as error:
        resolve(asked)
    assert "Did you mean" not in str(error.value)


@pytest.mark.parametrize("asked", ["h100 mig", "rtx 4090 laptop"])
def test_a_part_of_a_device_is_refused_in_words(asked):
    with pytest.raises(UnknownDevice, match=r"is a (MIG slice|laptop GPU).* In this machine: cpu") as error:
        resolve(asked)
    assert "Did you mean" not in str(error.value)


@pytest.mark.parametrize(
    ("asked", "meant"), [("h100x", "h100"), ("another-cpu-8", "another-cpu-7"), ("cpu-77", "another-cpu-7")]
)
def test_the_nearest_of_the_known_and_the_measured_is_suggested(asked, meant):
    measured = Device(name="Another CPU 7", kind="cpu")
    with pytest.raises(UnknownDevice, match=f"Did you mean '{meant}'.* Known: another-cpu-7, .* In this"):
        resolve(asked, [measured])


@pytest.mark.parametrize("asked", ["xeon-platinum", "xeonx", "epyc-9"])
def test_what_is_suggested_can_be_asked_about(asked):
    """What the keys of several processors share is no name of one."""
    names = ("Xeon Platinum 8480", "Xeon Platinum 8592", "EPYC 9654", "EPYC 9754")
    measured = [Device(name=name, kind="cpu") for name in names]
    with pytest.raises(UnknownDevice) as error:
        resolve(asked, measured)
    for meant in re.findall("Did you mean '(.+?)'", str(error.value)):
        assert resolve(meant, measured).device in measured


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
    assert Device(name=name, kind="cuda").model == model


@pytest.mark.parametrize(("padded", "name"), [(" cpu", "cpu"), ("cpu ", "cpu"), (" NVIDIA  H200 ", "h200")])
def test_white_space_around_a_name_and_within_it_does_not_matter(padded, name):
    assert resolve(padded) == resolve(name)


def test_a_measured_device_is_known_by_its_name_however_it_is_spaced():
    measured = replace(known_devices()["nvidia-h200"], name="+ H200 +")
    assert devices.named(" +  H200 +", [replace(measured, name="H200 2"), measured]).name == "+ H200 +"
