"""The answer: which implementation, how fast, how large, on what evidence, and why not the others."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from json import dumps
from typing import TYPE_CHECKING, Any, NamedTuple

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device, Problem, UnknownDevice, UnsupportedProblem
from kernel_selector.kernels.contract.record import LAUNCHED

from ..errors import NotBuildable
from ..text.units import format_bytes, format_ms
from . import devices
from .basis import Basis, Ground, basis_of

if TYPE_CHECKING:
    import torch
    from torch import nn

SUMMARY = (
    "implementation",
    "source",
    "time_ms",
    "time_interval_ms",
    "memory_bytes",
    "memory_interval_bytes",
    "runner_up",
    "margin",
    "snapshot",
    "model_version",
)
WIDTH = 80
SOURCES = {
    "override": "asked for by name",
    "exact": "measured: this problem on this device",
    "model": "predicted by the cost model learned from measurements",
    "near": "measured on a neighbouring problem on this device, scaled by the work where it is known",
    "extrapolated": "extrapolated by the cost model from problems of other sizes",
    "transfer": "carried over from a device like this one, or from launched layers to compiled ones",
    "default": "there is no evidence that another one is better",
}
Interval = tuple[float, float]


class Candidate(NamedTuple):
    """One implementation that was considered. Figures are None where nothing is known.

    `source` says where the figures come from: a key of SOURCES, "" without figures.
    `excluded` is the reason why it could not be chosen, None when it could; `note` explains, for one that
    could, why a better figure was not enough.
    """

    name: str
    default: bool
    source: str = ""
    time_ms: float | None = None
    time_interval_ms: Interval | None = None
    memory_bytes: int | None = None
    memory_interval_bytes: tuple[int, int] | None = None
    excluded: str | None = None
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The implementation to use for a problem on a device, with its evidence.

    Times are of forward and backward in training, of forward in inference. Memory is at the peak, beyond
    parameters and inputs. Intervals: of measurements, from the time itself to the 80th percentile of its
    samples; of the cost model, the range that held for 90 % of measurements it had not seen, of bytes up to
    what a memory limit has to leave room for. `margin` is how much worse the runner-up is, relative to the
    choice, by the objective; negative when it looks better but
    within the noise. `basis` is worked out of `ground` when it is first asked for.
    """

    problem: Problem
    device: Device
    implementation: str
    source: str
    time_ms: float | None
    time_interval_ms: Interval | None
    memory_bytes: int | None
    memory_interval_bytes: tuple[int, int] | None
    runner_up: str | None
    margin: float | None
    candidates: tuple[Candidate, ...]  # the chosen one first
    objective: str
    memory_limit_bytes: int | None
    snapshot: str
    model_version: str | None
    caveats: tuple[str, ...]
    operator_assumed: bool
    torch_device: str | None
    regime: str = LAUNCHED
    ground: Ground | Basis | None = field(repr=False, compare=False)

    def __str__(self) -> str:
        """One line: what to use, where, what it takes and what that rests on."""
        line = f"{self.problem.operator}.{self.implementation} on {self.device.name}"
        if self.time_ms is None:
            return f"{line} ({self.source})"
        size = "" if self.memory_bytes is None else f", {format_bytes(self.memory_bytes)}"
        return f"{line}: {format_time(self)}{size} ({self.source})"

    def __getstate__(self) -> dict[str, Any]:
        """The fields, with the basis in place of all the evidence that it is worked out of."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {**fields, "ground": self.basis}

    @cached_property
    def basis(self) -> Basis | None:
        """Basis of the figures: whose measurements they are, how many, and the most similar one.

        None of a choice that an earlier version has written, which did not say.
        """
        if not isinstance(self.ground, Ground):
            return self.ground
        return basis_of(self.ground, self.problem, self.implementation, self.time_ms)

    @property
    def rests_on(self) -> str:
        """The basis in a line; "" where it is not known."""
        return self.basis.words(self.problem, self.device.name) if self.basis else ""

    @property
    def may_be_beaten(self) -> bool:
        """Whether another candidate may be faster, as far as its interval goes, or has no time at all."""
        high_ms = math.inf if self.time_interval_ms is None else self.time_interval_ms[1]
        return any(
            one.time_interval_ms is None or one.time_interval_ms[0] < high_ms
            for one in self.candidates[1:]
            if one.excluded is None
        )

    @property
    def exclusions(self) -> dict[str, str]:
        """Reasons why candidates could not be chosen, by name."""
        return {one.name: one.excluded for one in self.candidates if one.excluded is not None}

    def build(self, device: str | torch.device | None = None) -> nn.Module:
        """The chosen module, with fresh parameters, in the problem's dtype and mode.

        On `device` (of torch), else on the device that was asked about. On the CPU and on meta anything is
        built, also what only a GPU computes: it can be moved there. Raises UnknownDevice for a GPU that is
        not in this machine, UnsupportedProblem for one of this machine that the implementation refuses, and
        NotBuildable for an imported operator.
        """
        if self.problem.operator not in registry.operators():
            raise NotBuildable(
                f"{self.problem.operator} is an imported operator: its kernels are not part of this package. "
                f"Call {self.implementation!r} where it lives; `choice.implementation` has the name."
            )
        import torch

        target = self._place() if device is None else self._accepted(str(device))
        module = registry.implementation(self.problem.operator, self.implementation).build(self.problem)
        try:
            module = module.to(device=target, dtype=getattr(torch, self.problem["dtype"]))
        except (RuntimeError, AssertionError) as error:
            raise UnknownDevice(f"Cannot build on torch device {target!r}: {error}") from error
        return module.train(self.problem["mode"] == "training")

    def _place(self) -> str:
        """The device that was asked about, in torch's name; of processors any one stands for another.

        Raises UnknownDevice for a GPU that is not in this machine.
        """
        here = "cpu" if self.device.kind == "cpu" else self.torch_device or devices.torch_name(self.device)
        if here is None:
            raise UnknownDevice(
                f"{self.problem.operator}.{self.implementation} is chosen for {self.device.name}, and this "
                f"machine has {', '.join(devices.local_names())}. Build it where that GPU is, say where to "
                "put its parameters until it is moved there, build(device='cpu'), or choose for a device of "
                "this machine."
            )
        return here

    def _accepted(self, torch_device: str) -> str:
        """The same name in torch. Raises UnsupportedProblem for a GPU of this machine that the implementation
        refuses: what is on a GPU is called there.
        """
        name = "cuda:0" if torch_device == "cuda" else torch_device
        if name != "cpu" and name in devices.local_names():
            there = devices.identified(name)
            refusal = registry.implementation(self.problem.operator, self.implementation).unsupported(
                self.problem, there
            )
            if refusal is not None:
                raise UnsupportedProblem(
                    f"{self.implementation} cannot compute {self.problem} on {there.name}: {refusal}. It is "
                    f"chosen for {self.device.name}: choose with device={torch_device!r} for this one."
                )
        return torch_device

    def explain(self) -> str:
        """The whole answer as plain text."""
        return explain(self)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        data = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "ground"}
        data["problem"] = {"operator": self.problem.operator, **self.problem.as_dict}
        data["assumed"] = list(self.problem.assumed)
        data["device"] = self.device.to_dict()
        data["candidates"] = [candidate._asdict() for candidate in self.candidates]
        data["caveats"] = list(self.caveats)
        data["basis"] = self.basis and self.basis.to_dict()
        if self.regime == LAUNCHED:  # which earlier clients do not know
            del data["regime"]
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Choice:
        """The choice that `to_dict` wrote on another machine; so it has no `torch_device` here."""
        given = dict(data)
        values, basis = dict(given.pop("problem")), given.pop("basis", None)
        problem = Problem(values.pop("operator"), tuple(values.items()), tuple(given.pop("assumed")))
        candidates = tuple(Candidate(**_with_tuples(item)) for item in given.pop("candidates"))
        return cls(
            **_with_tuples(given)
            | {
                "problem": problem,
                "device": Device.from_dict(given["device"]),
                "candidates": candidates,
                "caveats": tuple(given["caveats"]),
                "ground": basis and Basis.from_dict(basis),
                "torch_device": None,
            }
        )

    def summary(self) -> dict[str, Any]:
        """JSON-ready and short, for answers by the hundred: without problem, device and other figures."""
        data = {name: getattr(self, name) for name in SUMMARY}
        data["exclusions"] = self.exclusions
        data["caveats"] = list(self.caveats)
        return data

    @cached_property
    def json(self) -> bytes:
        """`to_dict` as JSON in UTF-8; made once, because a choice is asked for again and again."""
        return dumps(self.to_dict(), ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _with_tuples(data: Mapping[str, Any]) -> dict[str, Any]:
    """The intervals, which JSON has as lists, as they were."""
    return {
        name: tuple(value) if isinstance(value, list) and "interval" in name else value
        for name, value in data.items()
    }


def explain(choice: Choice) -> str:
    """The choice in words: question, assumptions, evidence, and every other candidate."""
    lines = [*_question(choice), "", *_answer(choice), "", "Candidates", *_table(choice)]
    reasons = list(why_not(choice))
    for title, words in (("Why not", reasons), ("Caveats", choice.caveats)):
        if words:
            lines += ["", title, *(_wrapped("  - ", text) for text in words)]
    model = f" and cost model {choice.model_version}" if choice.model_version else ""
    lines += ["", _wrapped("", f"Decided on measurement snapshot {choice.snapshot}{model}.")]
    return "\n".join(lines)


def _question(choice: Choice) -> list[str]:
    problem = choice.problem
    given = [f"{name}={value}" for name, value in problem.values if name not in problem.assumed]
    assumed = [f"{name}={problem[name]}" for name in problem.assumed]
    if choice.operator_assumed:
        assumed.insert(0, f"operator={problem.operator}")
    limit = choice.memory_limit_bytes
    device = choice.device
    where = device.name + (f", host {device.host}" if device.host and device.host != device.name else "")
    wish = "the least memory" if choice.objective == "memory" else "the shortest time"
    within = f" within {format_bytes(limit)} ({limit} bytes)" if limit is not None else ""
    lines = [_wrapped("Asked       ", f"{problem.operator} {' '.join(given)}")]
    if assumed:
        lines.append(_wrapped("Assumed     ", " ".join(assumed)))
    lines += [] if choice.regime == LAUNCHED else ["Regime      compiled with neighbours"]
    return [*lines, f"Device      {where}", f"Objective   {wish}{within}"]


def _answer(choice: Choice) -> list[str]:
    ours = choice.problem.operator in registry.operators()
    default = next((item.name for item in choice.candidates if item.default), None)
    standing = " (the framework's default)" if choice.implementation == default else ""
    lines = [f"Choice      {choice.implementation}{standing}", f"Because     {SOURCES[choice.source]}"]
    lines += [_wrapped("Rests on    ", choice.rests_on)] if choice.rests_on else []
    lines += [_wrapped("How         " if not row else " " * 12, text) for row, text in enumerate(how(choice))]
    if choice.time_ms is not None:
        lines.append(f"Time        {format_time(choice)}{_passes(choice) if ours else ''}")
    if choice.memory_bytes is not None:
        counted = " at the peak, beyond parameters and inputs" if ours else ""
        lines.append(f"Memory      {format_memory(choice)}{counted}")
    if choice.runner_up is not None and choice.margin is not None:
        lines.append(f"Runner-up   {choice.runner_up}, {format_margin(choice)}")
    return lines


def how(choice: Choice) -> list[str]:
    """Lines of text on how the chosen implementation computes this problem, where it can say."""
    if choice.problem.operator not in registry.operators():
        return []
    describe = registry.implementation(choice.problem.operator, choice.implementation).describe
    return describe(choice.problem, choice.device).splitlines() if describe is not None else []


def _passes(choice: Choice) -> str:
    return " for forward and backward" if choice.problem["mode"] == "training" else " for forward"


def format_margin(choice: Choice) -> str:
    """The margin to the runner-up in words; there must be one."""
    assert choice.margin is not None
    words = ("more", "less") if choice.objective == "memory" else ("slower", "faster")
    if choice.margin >= 0:
        return f"{choice.margin:.1%} {words[0]}"
    return f"{-choice.margin:.1%} {words[1]}"


def format_time(item: Choice | Candidate) -> str:
    """The time with its interval."""
    if item.time_interval_ms is None:
        return format_ms(item.time_ms)
    low, high = map(format_ms, item.time_interval_ms)
    if low.split()[-1] == high.split()[-1]:
        low = low.split()[0]
    return f"{format_ms(item.time_ms)} ({low} - {high})"


def format_memory(item: Choice | Candidate) -> str:
    """The memory with the upper end of its interval."""
    low_high = item.memory_interval_bytes
    if low_high is None or low_high[0] == low_high[1]:
        return format_bytes(item.memory_bytes)
    return f"{format_bytes(item.memory_bytes)} (up to {format_bytes(low_high[1])})"


def _table(choice: Choice) -> list[str]:
    rows = [("  implementation", "time", "memory", "from", "remark")]
    rows += [_row(choice, candidate) for candidate in choice.candidates]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    cells = [[*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[4]] for row in rows]
    lines = ["  ".join(row).rstrip() for row in cells]
    # the longest names and remarks leave room for one blank alone
    return lines if max(map(len, lines)) <= WIDTH else [" ".join(row).rstrip() for row in cells]


def _row(choice: Choice, candidate: Candidate) -> tuple[str, str, str, str, str]:
    return (
        f"{'*' if candidate.name == choice.implementation else ' '} {candidate.name}",
        format_time(candidate),
        format_bytes(candidate.memory_bytes),
        candidate.source or "-",
        remarks(choice, candidate),
    )


def remarks(choice: Choice, candidate: Candidate) -> str:
    """Words on a candidate's place in its choice: "chosen, default", "excluded", "within noise", or none."""
    words = {
        "chosen": candidate.name == choice.implementation,
        "default": candidate.default,
        "excluded": candidate.excluded is not None,
        "within noise": bool(candidate.note),
    }
    return ", ".join(word for word, holds in words.items() if holds)


def why_not(choice: Choice) -> Iterator[str]:
    """For each candidate that was passed over in spite of its figures, the reason."""
    for item in choice.candidates:
        if item.excluded or item.note:
            yield f"{item.name}: {item.excluded or item.note}"


def _wrapped(start: str, text: str) -> str:
    """The text after `start`, in lines of WIDTH that go on below where it began."""
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=start,
        subsequent_indent=" " * len(start),
        break_long_words=False,
        break_on_hyphens=False,
    )
