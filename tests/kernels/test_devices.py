import json

import pytest

from kernel_selector.kernels.contract import AmbiguousDevice, Device, UnknownDevice
from kernel_selector.kernels.devices import FILE, known_device, known_devices


def test_every_row_is_a_complete_gpu():
    for key, device in known_devices().items():
        assert device.key == key
        assert device.kind == "cuda"
        assert device.vendor == "NVIDIA"
        assert device.compute_capability >= (7, 0)
        assert 1 <= device.multiprocessors <= 200
        assert 2**33 <= device.memory_bytes <= 2**38
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
        ("gh200", "nvidia-gh200-480gb"),
        ("h100-sxm", "nvidia-h100-80gb-hbm3"),
        ("a100 80gb", "nvidia-a100-sxm4-80gb"),
    ],
)
def test_short_names(name, key):
    assert known_device(name).key == key


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("a100", ["nvidia-a100-sxm4-40gb", "nvidia-a100-sxm4-80gb"]),
        ("A100", ["nvidia-a100-80gb-pcie", "nvidia-a100-pcie-40gb"]),
        ("H100", ["nvidia-h100-80gb-hbm3", "nvidia-h100-nvl", "nvidia-h100-pcie"]),
    ],
)
def test_an_ambiguous_name_lists_what_it_may_mean_and_no_more(name, keys):
    with pytest.raises(AmbiguousDevice, match=r"may be any of .*: say which one\.") as error:
        known_device(name)
    for key in keys:
        assert key in str(error.value)
    assert "h200" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "key"),
    [("h20O", "nvidia-h200"), ("rtx 4900", "nvidia-geforce-rtx-4090"), ("gh20", "nvidia-gh200")],
)
def test_the_nearest_of_the_known_is_suggested(name, key):
    with pytest.raises(UnknownDevice, match=f"Did you mean '{key}"):
        known_device(name)


def test_a_long_name_is_not_repeated():
    with pytest.raises(UnknownDevice, match="10000 characters") as error:
        known_device("x" * 10_000)
    assert len(str(error.value)) < 1000


@pytest.mark.parametrize("name", ["h20O", "", "nvidia", "cpu", None])
def test_an_unknown_name_lists_the_known(name):
    with pytest.raises(UnknownDevice, match="nvidia-h200"):
        known_device(name)
