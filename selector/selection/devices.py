"""Resolution of the device of a question: one of this machine, a known one by name, or a `Device`."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

from kernel_selector.kernels.contract import AmbiguousDevice, Device, UnknownDevice
from kernel_selector.kernels.contract.device import VENDOR_WORDS, spaced
from kernel_selector.kernels.contract.errors import shorten
from kernel_selector.kernels.devices import known_devices, slug, variants

from ..errors import InvalidRequest

# no multiprocessor has a twentieth of these: bounds of what can be a rate in the units that rates have
MOST_BYTES, MOST_FLOPS = 1e12, 3e14
MOST_MULTIPROCESSORS = 1024  # of any GPU
WITH_BFLOAT16 = (8, 0)  # the first compute capability
# of a GPU, beside its rates by dtype
FIGURES = (
    *("compute_capability", "multiprocessors", "memory_bytes", "l2_bytes"),
    *("shared_bytes_per_multiprocessor", "copy_bytes_per_s", "launch_us"),
)
LOCAL = re.compile(r"cpu|cuda(:\d+)?")  # names in torch
RAY_LABEL = "ray.io/accelerator-type"  # of a node of Ray: what clusters call its GPUs


@dataclass(frozen=True)
class Resolved:
    """A device, its name in torch when it is here, and a note of what its name was taken to mean."""

    device: Device
    torch_device: str | None
    note: str = ""


def resolve(asked: object = None, measured: Sequence[Device] = ()) -> Resolved:
    """The device for an argument: None (this machine's default), a torch device, a known name, a Device.

    `measured` are devices of the database, whose rates need not be probed again. Raises UnknownDevice for
    a name that is neither here nor known, InvalidRequest for anything that is no name and for a Device whose
    figures contradict each other.
    """
    if isinstance(asked, Device):
        check(asked)
        return Resolved(asked, torch_name(asked))
    if asked is None:
        name = default_torch_device()
    elif isinstance(asked, str) or type(asked).__module__ == "torch":
        name = spaced(str(asked))
    else:
        raise InvalidRequest(
            f"device={shorten(asked)}: expected a name such as 'cpu', 'cuda:0' or 'h200', or a Device."
        )
    if LOCAL.fullmatch(name):
        return _local(name, measured)
    known, note = _meant(name, measured)
    here = torch_name(known)
    if here:
        return replace(_local(here, measured), note=note)
    return Resolved(replace(known, host=""), None, note)  # whichever host has one


def check(device: Device) -> None:
    """Raise InvalidRequest where the figures of a GPU contradict each other, or those of its name."""
    if device.kind != "cuda":
        return
    found = contradiction(device)
    if found is not None:
        raise InvalidRequest(
            f"The figures of {shorten(device.name)} contradict each other: {found}. Sizes are in bytes, "
            "rates in bytes or operations per second; leave out (None) what is not known."
        )


def contradiction(device: Device) -> str | None:
    """Figures of a GPU that contradict each other, or those of its name, in words; None where none do."""
    return next(_contradictions(device), None)


def _contradictions(device: Device) -> Iterator[str]:
    memory, count = device.memory_bytes or math.inf, device.multiprocessors
    for name in ("l2_bytes", "shared_bytes_per_multiprocessor"):
        size = getattr(device, name)
        if size is not None and size >= memory:
            yield f"{name}={size} is no less than memory_bytes={device.memory_bytes}"
    if count == 0:
        yield "multiprocessors=0 compute nothing"
    rates = {f"matmul_flops_per_s[{dtype!r}]": rate for dtype, rate in device.matmul_flops_per_s.items()}
    for name, rate in {"copy_bytes_per_s": device.copy_bytes_per_s, **rates}.items():
        most = (MOST_BYTES if name == "copy_bytes_per_s" else MOST_FLOPS) * (count or MOST_MULTIPROCESSORS)
        if rate is not None and not 0 < rate <= most:
            yield f"{name}={rate:.4g} is not between 0 and the {most:.3g} of {count} multiprocessors"
    narrow, wide = (device.matmul_flops_per_s.get(dtype) for dtype in ("bfloat16", "float32"))
    if narrow and wide and (device.compute_capability or (0, 0)) >= WITH_BFLOAT16 and wide > 2 * narrow:
        yield f"products take longer in bfloat16 ({narrow:.4g} a second) than in float32 ({wide:.4g})"
    known = known_devices().get(device.key)
    for name in ("vendor", "compute_capability", "multiprocessors") if known else ():
        mine, theirs = getattr(device, name), getattr(known, name)
        if mine and mine != theirs:
            yield f"{name}={mine}, and a {device.name} has {theirs}"


def completed(devices: Sequence[Device]) -> list[Device]:
    """Devices, of which GPUs have what they do not say and the next one of their kind, or its name, does."""
    kinds: dict[str, list[Device]] = defaultdict(list)
    for one in devices:
        if one.kind == "cuda":
            kinds[one.key].append(one)
    for key, alike in kinds.items():
        alike += filter(None, [known_devices().get(key)])
    return [_completed(one, kinds[one.key]) if one.kind == "cuda" else one for one in devices]


def _completed(device: Device, alike: Iterable[Device]) -> Device:
    found = device
    for other in alike:
        lacking = {name: getattr(other, name) for name in FIGURES if getattr(found, name) is None}
        given = {name: value for name, value in lacking.items() if value is not None}
        rates = {**other.matmul_flops_per_s, **found.matmul_flops_per_s}
        if given or len(rates) > len(found.matmul_flops_per_s):
            found = replace(found, **given, matmul_flops_per_s=rates)
    return found


def stands_for(device: Device) -> str | None:
    """Name of the GPU that a device's name is short for in questions, or spells otherwise.

    Questions would then be about the device, and labels of nodes have its name. None for names as drivers
    give them: these name the maker too.
    """
    known = known_devices().get(device.key)
    if known is not None:
        return None if device.name == known.name else known.name
    words = set(re.findall("[a-z]+", device.name.lower()))
    if device.kind != "cuda" or words & VENDOR_WORDS:
        return None
    try:
        return variants(device.name)[0].name
    except AmbiguousDevice:
        return "several devices"
    except UnknownDevice:
        return None


def local_names() -> tuple[str, ...]:
    """The devices of this machine by their names in torch."""
    import torch

    return ("cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count())))


@cache
def default_torch_device() -> str:
    """The GPU when there is one, else the CPU."""
    from kernel_selector.kernels import measure

    return measure.default_torch_device()


def _local(name: str, measured: Sequence[Device]) -> Resolved:
    name = "cuda:0" if name == "cuda" else name
    if name not in local_names():
        raise UnknownDevice(
            f"No device {shorten(name)} in this machine, which has {', '.join(local_names())}. Ask for one "
            "of those, or by name for a known device that is elsewhere (`selector devices` lists them)."
        )
    fingerprint = _identified(name).fingerprint
    # the rates of all measurements are the ones that the cost model has learned from, and there is no need to
    # wait for a probe
    stored = (device for device in measured if device.fingerprint == fingerprint)
    return Resolved(next(stored, None) or _probed(name), name)


def named(name: str, measured: Sequence[Device]) -> Device:
    """A device by name: as last measured, else from the shipped table. Raises UnknownDevice."""
    return _meant(spaced(name), measured)[0]


def _meant(name: str, measured: Sequence[Device]) -> tuple[Device, str]:
    """The device of a name, and what the name was taken to mean where it fits several variants of a model.

    Those are the variant that is here, else one that was measured, else the commonest.
    """
    by_key = {device.key: device for device in reversed(measured)}  # the first of several hosts
    written = by_key.get(slug(name)) or next((one for one in measured if one.name == name), None)
    if written is not None:
        return written, ""
    try:
        meant = variants(name, by_key)
    except UnknownDevice as error:
        raise type(error)(f"{error} In this machine: {', '.join(local_names())}.") from None
    here = [one for one in meant if len(meant) > 1 and torch_name(one)]
    known = next((one for one in meant if one.key in by_key), meant[0])
    taken = (here or [known])[0]
    note = f"{name}: taken as {taken.name}." if len(meant) > 1 else ""
    return by_key.get(taken.key, taken), note


def identified(torch_device: str) -> Device:
    """A device of this machine by its name in torch, without rates: what implementations are asked with."""
    return _identified(torch_device)


@cache
def _identified(name: str) -> Device:
    """A device of this machine, without rates."""
    from kernel_selector.kernels import measure

    return measure.identify(name)


@cache
def _probed(name: str) -> Device:
    """A device of this machine with measured rates: takes a second."""
    from kernel_selector.kernels import measure

    return measure.probe(name)


def torch_name(device: Device) -> str | None:
    """The name in torch of a device of this machine of the same kind; None when there is none."""
    if device.kind == "cpu":
        return "cpu" if device.key == _identified("cpu").key else None
    return _gpus_here().get(device.key)


@cache
def _gpus_here() -> dict[str, str]:
    """Names in torch by device key; of equal GPUs the first."""
    import torch

    gpus = [name for name in local_names() if name != "cpu"]
    return {slug(torch.cuda.get_device_name(name)): name for name in reversed(gpus)}
