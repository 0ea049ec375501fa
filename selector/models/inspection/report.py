"""Memory and time profile of a training step, as data and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ...text.units import format_bytes, format_ms

TOTALS = ("peak", "weight", "gradient", "feature_map", "optimizer", "input", "workspace")
PLURAL = ("weight", "gradient", "feature_map", "input")
HEAD = ("module", "kind", "weights", "feature maps", "forward", "backward", "utilisation")


@dataclass(frozen=True, kw_only=True)
class ModuleShare:
    """Memory and time of one module, without its submodules.

    The last one, "(outside)", is what runs outside of all modules, as a loss function does.
    `feature_map_bytes` are kept from forward to backward, each storage with the module that kept it first.
    Times are of one step; `utilisation` is the share of the device's measured matrix rate, None where the
    module has no operations that are counted or the rate is not known.
    """

    path: str
    kind: str
    weight_bytes: int
    gradient_bytes: int
    feature_map_bytes: int
    forward_ms: float
    backward_ms: float
    flops: int
    utilisation: float | None


@dataclass(frozen=True, kw_only=True)
class ModelInspection:
    """Memory and time profile of one training step, in total and by module.

    `workspace_bytes` is what the peak has beyond weights, feature maps, the optimizer's state and the inputs:
    temporaries, and those gradients that are there at the peak. All gradients are `gradient_bytes`.
    """

    model: str
    device: str
    peak_bytes: int
    weight_bytes: int
    gradient_bytes: int
    feature_map_bytes: int
    optimizer_bytes: int
    input_bytes: int
    workspace_bytes: int
    forward_ms: float
    backward_ms: float
    flops: int
    utilisation: float | None
    modules: tuple[ModuleShare, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready dictionary."""
        return asdict(self)

    def table(self, other: ModelInspection | None = None, most: int = 20) -> str:
        """Text table of the totals and the `most` expensive modules; beside those of `other`, a second
        inspection.
        """
        return one(self, most) if other is None else side_by_side(self, other, most)


def one(found: ModelInspection, most: int) -> str:
    """Text table of one inspection: totals, then the most expensive modules in the model's order."""
    lines = [f"{found.model} on {found.device}"]
    lines += [f"  {_words(name):<14}{format_bytes(_bytes(found, name)):>12}" for name in TOTALS]
    lines += [
        f"  {'forward':<14}{format_ms(found.forward_ms):>12}",
        f"  {'backward':<14}{format_ms(found.backward_ms):>12}",
        f"  {'operations':<14}{found.flops:>12.4g}",
        f"  {'utilisation':<14}{_percent(found.utilisation):>12}",
        "",
    ]
    rows = [_row(share) for share in _largest(found, most)]
    return "\n".join([*lines, *_aligned([HEAD, *rows])])


def side_by_side(before: ModelInspection, after: ModelInspection, most: int) -> str:
    """Text table of two inspections, with the ratio of before to after."""
    rows: list[tuple[str, ...]] = [("", "before", "after", "ratio")]
    for name in TOTALS:
        pair = _bytes(before, name), _bytes(after, name)
        rows.append((_words(name), *map(format_bytes, pair), _ratio(*pair)))
    for name in ("forward", "backward"):
        times: tuple[float, float] = getattr(before, f"{name}_ms"), getattr(after, f"{name}_ms")
        rows.append((name, *map(format_ms, times), _ratio(*times)))
    later = {share.path: share for share in after.modules}
    rows.append(("", "", "", ""))
    rows.append(("module", "feature maps, time", "feature maps, time", "ratios"))
    for share in _largest(before, most):
        other = later.get(share.path)
        rows.append((share.path, _short(share), _short(other) if other else "-", _ratios(share, other)))
    return "\n".join(_aligned(rows))


def _words(name: str) -> str:
    return name.replace("_", " ") + "s" * (name in PLURAL)


def _bytes(found: ModelInspection, name: str) -> int:
    size: int = getattr(found, f"{name}_bytes")
    return size


def _largest(found: ModelInspection, most: int) -> list[ModuleShare]:
    """Modules with the largest share of bytes or time, in the model's order."""
    size = max(sum(share.feature_map_bytes for share in found.modules), 1)
    spent = max(found.forward_ms + found.backward_ms, 1e-9)

    def weight(share: ModuleShare) -> float:
        return max(share.feature_map_bytes / size, _time(share) / spent)

    kept = sorted(found.modules, key=weight, reverse=True)[:most]
    return [share for share in found.modules if share in kept and weight(share) > 0]


def _time(share: ModuleShare) -> float:
    return share.forward_ms + share.backward_ms


def _row(share: ModuleShare) -> tuple[str, ...]:
    return (
        share.path,
        share.kind,
        format_bytes(share.weight_bytes),
        format_bytes(share.feature_map_bytes),
        format_ms(share.forward_ms),
        format_ms(share.backward_ms),
        _percent(share.utilisation),
    )


def _short(share: ModuleShare) -> str:
    return f"{format_bytes(share.feature_map_bytes)}, {format_ms(_time(share))}"


def _ratios(before: ModuleShare, after: ModuleShare | None) -> str:
    if after is None:
        return "-"
    sizes = _ratio(before.feature_map_bytes, after.feature_map_bytes)
    return f"{sizes}, {_ratio(_time(before), _time(after))}"


def _ratio(before: float, after: float) -> str:
    return f"{before / after:.2f}x" if after else "-"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns of equal width: the first left-aligned, the others right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            text.ljust(width) if index == 0 else text.rjust(width)
            for index, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
