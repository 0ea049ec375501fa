"""Figures of a submitted record that no machine can give: too short, too small, or parts beyond the whole.

The bounds were tried on all that ships, 91,490 good measurements of two GPUs and a processor. All but one
stay within them: a linear layer whose workspace was counted as given back, so that its peak is 0 bytes. What
each constant says of what ships is the nearest that a measurement comes to it.
"""

from __future__ import annotations

from typing import NamedTuple

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device, Memory, Problem, Record, Timing
from kernel_selector.kernels.contract.record import TIMINGS
from selector.cost_model.features.work import least_work
from selector.text.units import format_bytes, format_ms

OVER_RATE = 2.0  # times the probed rate of matrix products that nothing exceeds: of what ships 1.04 at most
OVER_COPY = 4.0  # times the probed rate of copies, for what stays in caches: of what ships 1.3 at most
STEP_MS = 1e-4  # of one of a chain of kernels, in a graph too, which take 3 times as long at least
SHORTEST_MS = 1e-3  # of anything: kernels take twice as long to start, operations on a processor 5 times
MOST_OF_WHOLE = 4.0  # of a part in the whole: noise of the host made it 2.7
MOST_SPREAD = 1000.0  # between percentiles: 570 where a host came to a stop
MOST_UNDISTURBED = 8.0  # that undisturbed samples are below the 20th percentile: 4.3 on a busy processor
# at most 88 MB of workspaces that libraries had before are given back during a run, and counted as held less
GIVEN_BACK, OFTEN_GIVEN_BACK = 2**27, 2**25
OF_SAVED = 16  # what backward needs by the equations is at least so many times in the peak, in inference too
OF_MOVED = 8  # ... and what training moves, which has the gradients
# what an implementation is counted to keep is at most so many times what it kept, and of much, beside which
# workspaces are little, so many
OF_KEPT, OF_KEPT_LARGE = 20, 4
MOST_OF_MOVED = 2  # the arguments that it keeps: each of them is read
ROUNDING = 2**20  # small tensors take more than they hold


class Least(NamedTuple):
    """Least milliseconds and bytes of a problem by an implementation on a device; times with why in words."""

    forward: tuple[float, str]
    whole: tuple[float, str]  # backward too, in training
    peak_bytes: float
    kept_bytes: float  # between forward and backward, of its own and of its arguments
    most_arguments_bytes: float

    @classmethod
    def of(cls, problem: Problem, implementation: str, device: Device) -> Least:
        """The least by counted operations and bytes. Of a processor's times nearly nothing is known."""
        operator = registry.operator(problem.operator)
        own = registry.implementation(problem.operator, implementation).work(problem)
        work = least_work(problem)
        training = problem["mode"] == "training"
        there = {
            mode: operator.problem({**problem.as_dict, "mode": mode}) for mode in ("inference", "training")
        }
        forward = least_work(there["inference"])
        peak = least_work(there["training"]).saved_bytes / OF_SAVED
        kept = 0.0
        if training:
            peak = max(peak, work.moved_bytes / OF_MOVED - OFTEN_GIVEN_BACK)
            kept = max(own.saved_bytes / OF_KEPT, own.saved_bytes / OF_KEPT_LARGE - OFTEN_GIVEN_BACK)
        return cls(
            forward=_least_ms(device, forward.flops, forward.moved_bytes, 0),
            whole=_least_ms(device, own.flops, work.moved_bytes, own.steps),
            peak_bytes=peak,
            kept_bytes=kept,
            most_arguments_bytes=MOST_OF_MOVED * work.moved_bytes + ROUNDING,
        )


def _least_ms(device: Device, flops: float, moved_bytes: float, steps: float) -> tuple[float, str]:
    """Milliseconds that work takes at rates which nothing reaches, and words for why."""
    found = [(SHORTEST_MS, f"where nothing takes less than {format_ms(SHORTEST_MS)}")]
    if device.kind == "cuda":  # a busy processor's probe says too little, by factors
        if rates := device.matmul_flops_per_s:
            ms = flops / max(rates.values()) / OVER_RATE * 1e3
            words = f"where its operations take {format_ms(ms)} at {OVER_RATE:g} times the device's rate"
            found.append((ms, words))
        if device.copy_bytes_per_s:
            ms = moved_bytes / device.copy_bytes_per_s / OVER_COPY * 1e3
            words = f"where its bytes take {format_ms(ms)} at {OVER_COPY:g} times the device's rate of copies"
            found.append((ms, words))
        ms = steps * STEP_MS
        found.append((ms, f"where {steps:.0f} kernels that follow each other take {format_ms(ms)}"))
    return max(found)


def impossible(record: Record, least: Least) -> str | None:
    """Figure of a record that cannot be, in words; None where all are possible."""
    timings = {name: found for name in TIMINGS if (found := getattr(record, name)) is not None}
    for name, timing in timings.items():
        whole = name.endswith("backward") or record.problem["mode"] != "training"
        if reason := _of_timing(timing, *(least.whole if whole else least.forward)):
            return reason if timing is record.total else f"{name} of {reason}"
    for part, whole_name in (
        ("forward", "forward_backward"),
        ("graph_forward", "graph_forward_backward"),
        ("graph_forward", "forward"),
        ("graph_forward_backward", "forward_backward"),
    ):
        if part in timings and whole_name in timings:
            mine, theirs = timings[part].undisturbed_ms, timings[whole_name].undisturbed_ms
            if mine > MOST_OF_WHOLE * theirs:
                return f"{part} of {format_ms(mine)}, where {whole_name} takes {format_ms(theirs)}"
    return None if record.memory is None else _of_memory(record.memory, least)


def _of_timing(timing: Timing, least_ms: float, why: str) -> str | None:
    low, time_ms = min(timing.p20_ms, timing.undisturbed_ms), timing.undisturbed_ms
    if low < least_ms:
        return f"{format_ms(low)}, {why}"
    if timing.p80_ms > MOST_SPREAD * timing.p20_ms:
        spread = f"{format_ms(timing.p20_ms)} to {format_ms(timing.p80_ms)}"
        return f"{spread}: expected percentiles of one kind of run"
    if not timing.p20_ms / MOST_UNDISTURBED <= time_ms <= timing.p20_ms * (1 + 1e-6):
        words = f"{format_ms(timing.p20_ms)} as the 20th percentile"
        return f"{format_ms(time_ms)} by its samples, and {words}: expected the percentiles of these samples"
    return None


def _of_memory(memory: Memory, least: Least) -> str | None:
    peak, arguments = memory.peak_bytes, memory.kept_argument_bytes or 0
    if peak < least.peak_bytes or not peak:
        return (
            f"{format_bytes(peak)} at most at once, where its tensors take {format_bytes(least.peak_bytes)}"
        )
    kept = memory.held_bytes + arguments
    if kept < least.kept_bytes:
        return f"{format_bytes(kept)} kept for backward, which needs {format_bytes(least.kept_bytes)}"
    if memory.workspace_bytes > peak + GIVEN_BACK:
        workspace = format_bytes(memory.workspace_bytes)
        return f"workspace_bytes of {workspace}, where {format_bytes(peak)} is the peak"
    if arguments > least.most_arguments_bytes:
        most = format_bytes(least.most_arguments_bytes)
        return f"kept_argument_bytes of {format_bytes(arguments)}: expected {most} at most"
    return None
