import json

import pytest

from kernel_selector.kernels.contract import AmbiguousDevice, Device, UnknownDevice, UnsupportedDevice
from kernel_selector.kernels.devices import FILE, known_device, known_devices, variants


def test_every_row_is_a_complete_gpu():
    for key, device in known_devices().items():
        assert device.key == key
        assert device.kind == "cuda"
        assert device.vendor == "NVIDIA"
        assert device.compute_capability >= (7, 0)
        assert 1 <= device.multiprocessors <= 200
        assert 2**33 <= device.memory_bytes <= 2**39
        assert 2**22 <= device.l2_bytes <= 2**28
        assert 2**16 <= device.shared_bytes_per_multiprocessor <= 2**18
        assert Device.from_dict(device.to_dict()) == device


def test_the_file_names_each_device_once():
    names = [row["name"] for row in json.loads(FILE.read_text())["devices"]]
    assert len(set(names)) == len(names) == len(known_devices())


def test_no_two_devices_share_a_spelling():
    for device in known_devices().values():
        assert known_device(device.name) is device
        assert known_device(device.key) is device
    for row in json.loads(FILE.read_text())["devices"]:
        for alias in row.get("aliases", []):
            assert known_device(alias).name == row["name"]


@pytest.mark.parametrize("name", ["h200", "H200", "NVIDIA H200", "nvidia-h200", "  h200 "])
def test_case_and_vendor_do_not_matter(name):
    assert known_device(name).name == "NVIDIA H200"


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("a10", "nvidia-a10"),
        ("L4", "nvidia-l4"),
        ("t4", "tesla-t4"),
        ("rtx 4090", "nvidia-geforce-rtx-4090"),
        ("4090", "nvidia-geforce-rtx-4090"),
        ("rtx4090", "nvidia-geforce-rtx-4090"),
        ("RTXA6000", "nvidia-rtx-a6000"),
        ("gb200", "nvidia-gb200"),
        ("a100-40g", "nvidia-a100-sxm4-40gb"),
        ("a100 80 GB", "nvidia-a100-sxm4-80gb"),
        ("h100-sxm5-80gb", "nvidia-h100-80gb-hbm3"),
        ("gh200", "nvidia-gh200-480gb"),
        ("h100-sxm", "nvidia-h100-80gb-hbm3"),
        ("a100 80gb", "nvidia-a100-sxm4-80gb"),
        ("h20", "nvidia-h20"),
        ("b300", "nvidia-b300-sxm6-ac"),
        ("rtxpro6000", "nvidia-rtx-pro-6000-blackwell-server-edition"),
        ("rtx pro 6000 workstation", "nvidia-rtx-pro-6000-blackwell-workstation-edition"),
        ("v100-pcie", "tesla-v100-pcie-16gb"),
    ],
)
def test_short_names(name, key):
    assert known_device(name).key == key


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        (
            "a100",
            [
                "nvidia-a100-sxm4-80gb",
                "nvidia-a100-sxm4-40gb",
                "nvidia-a100-80gb-pcie",
                "nvidia-a100-pcie-40gb",
            ],
        ),
        ("A100 PCIe", ["nvidia-a100-80gb-pcie", "nvidia-a100-pcie-40gb"]),
        ("H100", ["nvidia-h100-80gb-hbm3", "nvidia-h100-pcie", "nvidia-h100-nvl"]),
        ("h100 80gb", ["nvidia-h100-80gb-hbm3", "nvidia-h100-pcie"]),
        (
            "nvidia-tesla-v100",
            ["tesla-v100-sxm2-16gb", "tesla-v100-sxm2-32gb", "tesla-v100-pcie-16gb", "tesla-v100-pcie-32gb"],
        ),
        ("h200", ["nvidia-h200"]),
    ],
)
def test_a_name_of_several_variants_means_the_commonest(name, keys):
    assert [device.key for device in variants(name)] == keys
    assert known_device(name).key == keys[0]


@pytest.mark.parametrize(("name", "keys"), [("rtx", ["rtx-3090", "rtx-a6000"]), ("80gb", ["a100", "h100"])])
def test_a_name_of_several_models_lists_what_it_may_mean_and_no_more(name, keys):
    with pytest.raises(AmbiguousDevice, match=r"may be any of .*: say which one\.") as error:
        known_device(name)
    for key in keys:
        assert key in str(error.value)
    assert "h200" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("mi300x", "an AMD GPU"),
        ("AMD Instinct MI250", "an AMD GPU"),
        ("amd w7900", "an AMD GPU"),
        ("apple a19", "an Apple GPU"),
        ("gaudi2", "an Intel accelerator"),
        ("m3", "an Apple GPU"),
        ("tpu-v4", "a Google TPU"),
        ("trn1", "an AWS accelerator"),
    ],
)
def test_what_has_no_implementations_is_said_to_have_none(name, what):
    with pytest.raises(UnsupportedDevice, match=f"'{name}' is {what}: only NVIDIA GPUs and CPUs") as error:
        known_device(name)
    assert "Did you mean" not in str(error.value)


@pytest.mark.parametrize("name", ["gtx 1080", "quadro rtx 6000"])
def test_another_model_is_not_taken_for_a_known_one(name):
    with pytest.raises(UnknownDevice, match="Unknown device"):
        known_device(name)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "a MIG slice"),
        ("h100 mig", "a MIG slice"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "a laptop GPU"),
    ],
)
def test_a_part_of_a_device_is_not_taken_for_it(name, what):
    with pytest.raises(UnknownDevice, match=f"is {what}, .*: ask in the machine that has it"):
        known_device(name)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("h2000", "nvidia-h200'"),
        ("rtx 4900", "nvidia-geforce-rtx-4090'"),
        ("gh20", "nvidia-gh200"),
        ("h100x", "h100'"),  # of several variants what they share, not a shorter name of another model
        ("H100X", "h100'"),
        ("hh100", "h100'"),
        ("nvidia h10", "nvidia-h100'"),
        ("a100x", "a100'"),
        ("v10", "v100'"),
        ("h100 pci", "nvidia-h100-pcie'"),
        ("rtx pro 600", "rtx-pro-6000'"),
        ("h100 sxm6", "nvidia-h100-80gb-hbm3'"),  # by an alias
    ],
)
def test_the_nearest_of_the_known_is_suggested(name, key):
    with pytest.raises(UnknownDevice, match=f"Did you mean '{key}") as error:
        known_device(name)
    known_device(str(error.value).split("'")[3])


def test_a_long_name_is_not_repeated():
    with pytest.raises(UnknownDevice, match="10000 characters") as error:
        known_device("x" * 10_000)
    assert len(str(error.value)) < 1000


@pytest.mark.parametrize("name", ["h20O", "", "nvidia", "cpu", None])
def test_an_unknown_name_lists_the_known(name):
    with pytest.raises(UnknownDevice, match="nvidia-h200"):
        known_device(name)
