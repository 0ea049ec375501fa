"""The answer to `selector.plan`: which implementations, how many samples at once, how fast, how large."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from kernel_selector.kernels.contract.errors import shorten

from ..errors import InvalidRequest
from ..text.units import format_bytes, format_ms


@dataclass(frozen=True, kw_only=True)
class Layers:
    """Layers of a part by one implementation, `count` in number. Times and bytes are of one of them."""

    part: str
    operator: str
    hyperparameters: Mapping[str, Any]
    implementation: str
    default: bool
    recomputed: bool
    count: int
    device_ms: float
    host_ms: float
    held_bytes: int
    source: str
    remark: str = ""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Plan to train a model within a memory limit. `memory` is the peak by what it is made of.

    A step is of `batch` samples, or of `accumulate` times as many. `samples_per_s` counts the optimizer.
    `default` is the best plan with the framework's own implementations, recomputing nothing: eager, or what
    torch.compile makes of a layer where that is faster and its operator is among `compiled`, of which it has
    a price; None where there is none. `measured_peak_bytes` is what one real step took, where one was run.
    `replayed` says that it holds for blocks that `selector.replay` makes CUDA graphs of.
    """

    model: str
    device: str
    batch: int
    accumulate: int
    limit_bytes: int
    layers: tuple[Layers, ...]
    recomputed_blocks: int
    step_ms: float
    device_ms: float
    host_ms: float
    optimizer_ms: float
    samples_per_s: float
    peak_bytes: int
    memory: Mapping[str, int]
    caveats: tuple[str, ...]
    snapshot: str
    default: Plan | None = None
    measured_peak_bytes: int | None = None
    replayed: bool = False
    compiled: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON-ready data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Plan:
        """The plan that `to_dict` gave, also by way of JSON. Raises InvalidRequest for other data."""
        try:
            given = dict(data)
            layers = tuple(Layers(**one) for one in given.pop("layers"))
            default = given.pop("default")
            return cls(
                **{
                    **given,
                    "caveats": tuple(given["caveats"]),
                    "compiled": tuple(given.get("compiled", ())),
                },
                layers=layers,
                default=None if default is None else cls.from_dict(default),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidRequest(
                f"plan={shorten(data)}: expected what Plan.to_dict gave ({type(error).__name__}: {error})."
            ) from error

    def choices(self) -> dict[str, dict[str, int]]:
        """Part to implementation to the number of layers."""
        found: dict[str, dict[str, int]] = {}
        for one in self.layers:
            counts = found.setdefault(one.part, {})
            counts[one.implementation] = counts.get(one.implementation, 0) + one.count
        return found

    @property
    def speed_up(self) -> float | None:
        """Speed-up over `default`, the framework's own implementations within the same limit."""
        return None if self.default is None else self.samples_per_s / self.default.samples_per_s

    @property
    def baseline(self) -> str:
        """Description of what `speed_up` is over."""
        eager = sorted({one.operator for one in self.layers} - {*self.compiled})
        if not self.compiled:
            return "the framework's own (eager: nothing is known of torch.compile)"
        alone = f"; eager alone of {', '.join(eager)}" if eager else ""
        return f"the framework's own (for each layer the faster of eager and torch.compile{alone})"

    @property
    def headline(self) -> str:
        """The plan in one line."""
        return (
            f"{self.model} on {self.device} within {format_bytes(self.limit_bytes)}: batch {self.batch}, "
            f"{self.samples_per_s:.4g} samples/s, peak {format_bytes(self.peak_bytes)}"
        )

    def explain(self) -> str:
        """The whole plan as plain text."""
        lines = [
            self.headline,
            f"step {format_ms(self.step_ms)} (device {format_ms(self.device_ms)}, host "
            f"{format_ms(self.host_ms)}), optimizer {format_ms(self.optimizer_ms)}",
            "memory: " + ", ".join(f"{name} {format_bytes(size)}" for name, size in self.memory.items()),
            *(f"  {_line(one)}" for one in self.layers),
        ]
        if self.recomputed_blocks:
            lines.append(f"  recomputed in backward: {self.recomputed_blocks} blocks")
        if self.replayed:
            lines.append("  blocks are replayed as CUDA graphs: selector.replay")
        if self.measured_peak_bytes is not None:
            apart = self.peak_bytes / self.measured_peak_bytes - 1
            lines.append(f"measured peak {format_bytes(self.measured_peak_bytes)} ({apart:+.1%} planned)")
        if self.default is not None:
            lines.append(f"{self.speed_up:.2f}x over {self.baseline}: {self.default.headline}")
        return "\n".join([*lines, *(f"note  {caveat}" for caveat in self.caveats)])


def _line(one: Layers) -> str:
    again = ", recomputed" if one.recomputed else ""
    return (
        f"{one.count:3d} x {one.part}: {one.operator}.{one.implementation}{again}  "
        f"{format_ms(one.device_ms)}, holds {format_bytes(one.held_bytes)} each ({one.source})"
    )
