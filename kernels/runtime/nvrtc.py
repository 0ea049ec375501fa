"""CUDA C++ compiled by NVRTC at first use and launched through the driver's own bindings.

`cuda.bindings` comes with torch's CUDA builds and is imported at the first compilation only. Compiled
code is kept in a folder of the user's cache, keyed by source, options and compiler, so that a process
pays for a configuration once per machine: KERNEL_SELECTOR_CACHE names another folder. What is read from there
is run, so it has to be a file of this user that nobody else may write, with the hash of its content.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import re
import stat
import tempfile
import threading
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

HASH_BYTES = hashlib.sha256().digest_size  # behind the code of a file, which readers of ELF pass over
log = logging.getLogger(__name__)
INCLUDE = re.compile(r'^#include "([\w.]+)"$', re.MULTILINE)


class Launch(NamedTuple):
    """Sizes of a kernel's launch. With clusters, all CTAs must be resident at once, else it is refused."""

    blocks: int
    threads: int
    cluster: int  # CTAs of a cluster; 0: CTAs that do not wait for each other, any number of them
    shared_bytes: int


class Kernel:
    """One function of a source file, compiled with `defines` for a compute capability such as `90a`."""

    def __init__(
        self, source: Path, function: str, capability: str, defines: tuple[tuple[str, int], ...]
    ) -> None:
        self._code = compiled(source, capability, defines)
        self._name = function
        self._functions: dict[int, Any] = {}  # by device: code belongs to a context
        self._configurations: dict[tuple[int, Launch], Any] = {}
        self._lock = threading.Lock()  # a configuration holds the stream of the launch under way

    def __call__(self, launch: Launch, parameters: bytes, device: torch.device) -> None:
        """Launch on the device's current stream; `parameters` is the kernel's only argument, as bytes.

        Raises RuntimeError where CTAs that wait for each other do not all fit at once, and would hang.
        """
        from cuda.bindings import driver

        index = torch.cuda.current_device() if device.index is None else device.index
        if index != torch.cuda.current_device():
            with torch.cuda.device(index):
                self(launch, parameters, device)
            return
        pointers = (ctypes.c_char_p * 1)(parameters)
        address = ctypes.addressof(pointers)
        with self._lock:
            configuration = self._configurations.get((index, launch)) or self._prepare(index, launch)
            configuration.hStream = torch.cuda.current_stream(index).cuda_stream
            _checked(driver.cuLaunchKernelEx(configuration, self._functions[index], address, 0))

    def _prepare(self, index: int, launch: Launch) -> Any:
        from cuda.bindings import driver

        if index not in self._functions:
            torch.cuda.synchronize(index)  # makes the device's context
            module = _checked(driver.cuModuleLoadData(self._code))
            function = _checked(driver.cuModuleGetFunction(module, self._name.encode()))
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            properties: Any = torch.cuda.get_device_properties(index)
            limit = properties.shared_memory_per_block_optin
            _checked(driver.cuFuncSetAttribute(function, attribute, limit))
            self._functions[index] = function
        configuration = _configuration(launch)
        if launch.cluster:
            clusters = _checked(driver.cuOccupancyMaxActiveClusters(self._functions[index], configuration))
            if clusters * launch.cluster < launch.blocks:
                raise RuntimeError(
                    f"{self._name}: {launch.blocks} CTAs in clusters of {launch.cluster} must be resident at "
                    f"once, this device has room for {clusters * launch.cluster}: use another implementation"
                )
        self._configurations[index, launch] = configuration
        return configuration


def _configuration(launch: Launch) -> Any:
    from cuda.bindings import driver

    configuration = driver.CUlaunchConfig()
    configuration.gridDimX, configuration.gridDimY, configuration.gridDimZ = launch.blocks, 1, 1
    configuration.blockDimX, configuration.blockDimY, configuration.blockDimZ = launch.threads, 1, 1
    configuration.sharedMemBytes = launch.shared_bytes
    if not launch.cluster:
        return configuration
    cluster = driver.CUlaunchAttribute()
    cluster.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    cluster.value.clusterDim.x, cluster.value.clusterDim.y, cluster.value.clusterDim.z = launch.cluster, 1, 1
    # the driver refuses a cooperative launch whose CTAs cannot all be resident
    cooperative = driver.CUlaunchAttribute()
    cooperative.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
    cooperative.value.cooperative = 1
    configuration.attrs = [cluster, cooperative]
    configuration.numAttrs = 2
    return configuration


@cache
def compiled(source: Path, capability: str, defines: tuple[tuple[str, int], ...]) -> bytes:
    """The machine code of a source file, from the cache folder where it was compiled before."""
    headers = _headers(source)
    options = (
        f"--gpu-architecture=sm_{capability}",
        "--std=c++17",
        *(f"-D{name}={value}" for name, value in defines),
    )
    file = _cache_folder() / f"{source.stem}-{_digest(source, headers, options)}.cubin"
    code = _kept(file)
    if code is None:
        code = _compile(source, headers, options)
        _write(file, code)
    return code


def _kept(file: Path) -> bytes | None:
    """Machine code of a file of the cache; None without one that may be run, which the log says."""
    try:
        with open(file, "rb", opener=_without_links) as opened:
            found = os.fstat(opened.fileno())
            ours = stat.S_ISREG(found.st_mode) and found.st_uid in (os.geteuid(), 0)
            alone = ours and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
            data = opened.read() if alone else b""
    except FileNotFoundError:
        return None
    except OSError as error:
        log.warning("%s cannot be read, and is compiled anew: %s", file, error)
        return None
    code, kept_hash = data[:-HASH_BYTES], data[-HASH_BYTES:]
    if alone and hashlib.sha256(code).digest() == kept_hash:
        return code
    wrong = "is not what was written" if alone else "is of another user, or may be written by one"
    log.warning("%s %s: it is compiled anew", file, wrong)
    return None


def _without_links(path: str, flags: int) -> int:
    # without waiting for the other end of a pipe
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _headers(source: Path) -> dict[str, str]:
    """The files of the source's folder that it includes, directly or through others, by name."""
    found: dict[str, str] = {}
    waiting = INCLUDE.findall(source.read_text())
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = (source.parent / name).read_text()
            waiting.extend(INCLUDE.findall(found[name]))
    return found


def _digest(source: Path, headers: dict[str, str], options: tuple[str, ...]) -> str:
    from cuda.bindings import nvrtc

    major, minor = _checked(nvrtc.nvrtcVersion())
    parts = (source.read_text(), repr(sorted(headers.items())), repr(options), f"{major}.{minor}")
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def _cache_folder() -> Path:
    given = os.environ.get("KERNEL_SELECTOR_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(given) if given else Path(base) / "kernel-selector"


def _write(file: Path, code: bytes) -> None:
    """Other processes see all of the file or none, which is readable by this user alone."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as part:
        part.write(code + hashlib.sha256(code).digest())
    os.replace(part.name, file)


def _compile(source: Path, headers: dict[str, str], options: tuple[str, ...]) -> bytes:
    from cuda.bindings import nvrtc

    names, texts = list(headers), list(headers.values())
    program = _checked(
        nvrtc.nvrtcCreateProgram(
            source.read_text().encode(),
            source.name.encode(),
            len(names),
            [text.encode() for text in texts],
            [name.encode() for name in names],
        )
    )
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            log = b" " * _checked(nvrtc.nvrtcGetProgramLogSize(program))
            nvrtc.nvrtcGetProgramLog(program, log)
            raise RuntimeError(
                f"{source.name} does not compile with {options}:\n{log.decode(errors='replace')}"
            )
        code: bytes = b" " * _checked(nvrtc.nvrtcGetCUBINSize(program))
        _checked(nvrtc.nvrtcGetCUBIN(program, code))
        return code
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _checked(result: tuple[Any, ...]) -> Any:
    """What a call of the bindings returned. Raises RuntimeError, with the driver's name of the error."""
    status, *values = result
    if int(status) != 0:
        raise RuntimeError(f"CUDA refused: {status.name if hasattr(status, 'name') else status}")
    return values[0] if len(values) == 1 else tuple(values)
