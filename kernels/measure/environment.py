"""The software of this process, as it may change a time."""

from __future__ import annotations

import ctypes
import platform
import sys
from importlib import metadata

import torch

from ..contract import Environment, UnknownDevice


def default_torch_device() -> str:
    """`cuda:0` where torch has a GPU to use, else `cpu`."""
    return "cuda:0" if torch.cuda.is_available() else "cpu"


def canonical_torch_device(name: str) -> str:
    """`cpu` or `cuda:<index>`, of this machine. Raises UnknownDevice, which lists what is here."""
    here = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    canonical = "cuda:0" if name == "cuda" else name
    if canonical not in here:
        raise UnknownDevice(f"No device {name!r} in this machine. Measuring needs one of: {', '.join(here)}.")
    return canonical


def current_environment(torch_device: str | None = None) -> Environment:
    """The versions that matter for a torch device (None: this machine's default).

    For the CPU the GPU's driver and libraries are None: updating them does not change its times.
    """
    cuda = canonical_torch_device(torch_device or default_torch_device()) != "cpu"
    cudnn = torch.backends.cudnn.version() if cuda else None  # type: ignore[no-untyped-call]
    return Environment(
        python=platform.python_version(),
        torch=str(torch.__version__),
        triton=_installed("triton") if cuda else None,
        cuda=torch.version.cuda if cuda else None,
        cudnn=None if cudnn is None else str(cudnn),
        driver=_driver() if cuda else None,
        threads=torch.get_num_threads(),
        system=f"{sys.platform}-{platform.machine()}",
    )


def _installed(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _driver() -> str | None:
    """The NVIDIA driver's version, for example `580.65.06`; None when its library does not say."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        text = ctypes.create_string_buffer(96)
        if library.nvmlInit_v2() or library.nvmlSystemGetDriverVersion(text, ctypes.c_uint(len(text))):
            return None
        return text.value.decode()
    except (OSError, AttributeError):
        return None
