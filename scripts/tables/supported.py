"""Tables of supported devices, published models and recognised classes of modules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from .parts import table

if TYPE_CHECKING:
    from kernel_selector.kernels.contract import Device

GIB = 2**30
DTYPES = ("bfloat16", "float32")
PREFIXES = {"torch": "nn.", "transformers": "transformers: "}
SIZES = ("layers", "hidden", "heads", "vocabulary", "seq")


def devices() -> str:
    """A line a device: what choices for it rest on today, and how many implementations run on it."""
    from kernel_selector.kernels import registry
    from kernel_selector.kernels.devices import known_devices

    known, counts = known_devices(), _measurements()
    total = sum(len(registry.implementations(operator)) for operator in registry.operators())
    rows = (
        (
            device.name,
            f"`{key}`",
            ".".join(map(str, device.compute_capability or ())),
            f"{(device.memory_bytes or 0) / GIB:.0f} GiB",
            _evidence(device, [known[one] for one in counts if one in known], counts),
            f"{_running(device)} of {total}",
        )
        for key, device in known.items()
    )
    head = ("device", "its key", "compute capability", "memory", "choices rest on", "implementations")
    others = [f"{count:,} of `{key}`" for key, count in counts.items() if key not in known]
    return (
        f"{table(head, rows)}For CPUs there are {', '.join(others)}, which other processors get as well.\n\n"
    )


def models() -> str:
    """A line a published model: its sizes, and the operators of its layers."""
    from selector.workloads.published_models import families

    rows = (
        (
            f"`{name}`",
            ", ".join(f"{size} {getattr(family, size):,}" for size in SIZES if hasattr(family, size)),
            _words(part.problem.operator for part in family.model(name).workload(1).parts),
        )
        for name, family in families().items()
    )
    return table(("model", "sizes", "operators"), rows)


def classes() -> str:
    """A line a kind of module: the classes that are recognised, and the operators that they run."""
    from selector.models.layer_kinds import known_classes
    from selector.nn.hugging_face_losses import FusedLoss

    kinds: dict[tuple[str, ...], list[str]] = {}
    for name, operators in known_classes().items():
        package, last = name.partition(".")[0], name.rpartition(".")[2]
        shown = f"{PREFIXES[package]}{last}" if package in PREFIXES else name
        kinds.setdefault(operators, []).extend(_heads() if last == FusedLoss.__name__ else [shown])
    rows = ((_words(names), _words(operators)) for operators, names in kinds.items())
    return table(("class", "operators"), rows)


def _heads() -> Iterator[str]:
    """The models whose loss head is replaced where the loss alone is used."""
    from selector.nn.hugging_face import STANDS_FOR
    from selector.nn.hugging_face_losses import FusedLoss

    for name, (_, kind) in STANDS_FOR.items():
        if issubclass(kind, FusedLoss):
            yield f"{PREFIXES['transformers']}{name}"


def _words(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in dict.fromkeys(names))


def _measurements() -> Mapping[str, int]:
    """How many measurements ship, by the device's key, most first."""
    from kernel_selector.db import Database, records
    from selector.selection import shipped

    found: Counter[str] = Counter()
    with Database.open(shipped.unpacked()) as database, database.read() as connection:
        for row in records.counts(connection):
            found[row["device_key"]] += row["count"]
    return dict(found.most_common())


def _evidence(device: Device, measured: list[Device], counts: Mapping[str, int]) -> str:
    from selector.selection.transfer import alike, best_first

    if device in measured:
        return f"{counts[device.key]:,} measurements"
    origin = next(iter(best_first(device, alike(device, measured), counts)), None)
    if origin is None:
        return "nothing: torch's own, until it is profiled"
    same = origin.compute_capability == device.compute_capability
    return f"those of {origin.name}, carried over{'' if same else ' to another compute capability'}"


def _running(device: Device) -> int:
    """How many implementations take one of their operator's examples there."""
    from kernel_selector.kernels import registry

    total = 0
    for name, operator in registry.operators().items():
        problems = [
            operator.problem(**{**values, "dtype": dtype}) for values in operator.examples for dtype in DTYPES
        ]
        for one in registry.implementations(name).values():
            total += any(one.unsupported(problem, device) is None for problem in problems)
    return total
