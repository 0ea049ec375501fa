"""Judge, weigh and time the ways to make one encoder layer, in this process."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor

from benchmarks.common.figures import rounded
from benchmarks.common.kept import kept
from benchmarks.kernels._bert_layer import Layer, Sizes, Variant, compiled, quiet
from kernel_selector.kernels.gate.tolerance import TOLERANCES, Error, kind, scales
from kernel_selector.kernels.measure import COMPARE
from kernel_selector.kernels.measure.clock import Clock, EventClock, HostClock
from kernel_selector.kernels.measure.graphs import capture
from kernel_selector.kernels.measure.timing import Contestant, interleave, timing
from kernel_selector.kernels.measure.workload import Mark
from kernel_selector.kernels.measure.workload import Run as Timed

POLICY = replace(COMPARE, name="layer", max_samples=100, candidate_budget_ms=300, long_run_ms=1000)
BASELINES = ("compile", "torch")  # the first that was measured
PARAMETER_STD = 0.02  # as BERT draws its weights

Line = dict[str, Any]
Tensors = Mapping[str, Tensor]


class QueuedClock:
    """Times on the device alone: each run waits behind a pause in which the host launches all of it."""

    PAUSE_CYCLES = 30_000_000  # 15 ms of an H200

    def burst(self, run: Timed, first: int, count: int) -> list[tuple[float, ...]]:
        """The laps of each run."""
        laps = []
        for index in range(first, first + count):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(self.PAUSE_CYCLES)
            start.record()
            run(index, lambda: None)
            end.record()
            end.synchronize()
            laps.append((start.elapsed_time(end),))
        return laps


class Run:
    """A layer's sizes, inputs and parameters, which all variants share."""

    def __init__(self, sizes: Sizes, torch_device: str, *, l2_bytes: int, seed: int) -> None:
        self._sizes, self._device, self._seed = sizes, torch_device, seed
        self._dtype: torch.dtype = getattr(torch, sizes.dtype)
        self._clock: Clock = HostClock() if torch_device == "cpu" else EventClock(torch_device, l2_bytes)
        generator = torch.Generator(torch_device).manual_seed(seed)

        def normal(*shape: int, std: float = 1.0) -> Tensor:
            return torch.randn(shape, generator=generator, device=torch_device).mul_(std).to(self._dtype)

        shape = (sizes.batch, sizes.seq, sizes.hidden)
        self._x, self._gradient = normal(*shape).requires_grad_(), normal(*shape)
        self._parameters = {
            role: normal(*parameter.shape, std=PARAMETER_STD) + (role in ("first.weight", "second.weight"))
            for role, parameter in Variant("torch").build(sizes).roles()
        }

    def measure(self, variants: Sequence[Variant], *, end: float) -> list[Line]:
        """One line a variant, in order; none is prepared after `end` (time.monotonic)."""
        torch.compiler.reset()
        expected = self._results(self._layer(Variant("torch"), torch.float64))
        torchs = _errors(self._results(self._layer(Variant("torch"))), expected)
        lines: dict[str, Line] = {}
        runs: dict[str, Timed] = {}
        for variant in variants:
            line: Line = {"name": variant.name, "parts": dict(variant.parts), "status": "ok"}
            lines[variant.name] = line
            if reason := self._refusal(variant):
                line |= {"status": "refused", "reason": reason}
            elif time.monotonic() > end:
                line |= {"status": "not measured", "reason": "the budget was spent"}
            else:
                try:
                    line |= self._judged(variant, expected, torchs)
                    if line["status"] == "ok":
                        runs[variant.name] = self._weighed(variant, line)
                except Exception as error:
                    line |= _crashed(error)
        del expected
        self._time("ms", runs, lines, self._clock)
        if self._device != "cpu":
            self._time("device_ms", runs, lines, QueuedClock())
            self._time("graph_ms", self._captured(runs, lines), lines, self._clock)
        return list(lines.values())

    def _refusal(self, variant: Variant) -> str:
        if variant.budget is not None and self._device == "cpu":
            return "torch.compile needs a C++ compiler for processors, which is not taken for granted"
        return variant.reason

    def _layer(self, variant: Variant, dtype: torch.dtype | None = None) -> Layer:
        layer = variant.build(self._sizes).to(self._device, dtype or self._dtype).train()
        with torch.no_grad():
            for role, parameter in layer.roles():
                parameter.copy_(self._parameters[role])
        return layer

    def _results(self, layer: Layer) -> dict[str, Tensor]:
        """The output and all gradients, with nothing dropped."""
        quiet(layer)
        dtype = layer.query.weight.dtype
        x = self._x.detach().to(dtype).requires_grad_()
        out = layer(x)
        roles, parameters = zip(*layer.roles(), strict=True)
        names = ["gradient of argument[0]", *(f"gradient of parameter {role}" for role in roles)]
        gradients = torch.autograd.grad(out, [x, *parameters], self._gradient.to(dtype))
        return {"output": out.detach(), **dict(zip(names, gradients, strict=True))}

    def _judged(self, variant: Variant, expected: Tensors, torchs: Mapping[str, Error]) -> Line:
        """The worst error over the allowed one, of any tensor. What is compiled is torch's own."""
        if variant.budget is not None:
            return {"budget": variant.budget}
        errors = _errors(self._results(self._layer(variant)), expected)
        found = {
            name: error.ratio(torchs[name].allowed(TOLERANCES[self._dtype, kind(name)]))
            for name, error in errors.items()
        }
        worst = max(found, key=lambda name: found[name])
        if found[worst] <= 1:
            return {"error_ratio": rounded(found[worst])}
        words = f"{worst}: error {errors[worst].rms:.2g} RMS, {found[worst]:.3g} times the allowed one"
        return {"status": "incorrect", "reason": words}

    def _weighed(self, variant: Variant, line: Line) -> Timed:
        """Its run, after enough of them for libraries and compilers to take what they need."""
        layer = self._layer(variant)
        call = layer if variant.budget is None else compiled(layer, variant.budget, variant.mode)
        leaves = [self._x, *layer.parameters()]

        def run(_index: int, mark: Mark) -> None:
            out = call(self._x)
            mark()
            torch.autograd.grad(out, leaves, self._gradient)

        for _ in range(2):
            run(0, lambda: None)
        found, tokens = kept(call, leaves, self._gradient), self._sizes.tokens
        line["bytes_per_token"] = round(found.in_graph / tokens, 1)
        if found.allocated is not None:
            line |= {"allocated_per_token": round(found.allocated / tokens, 1), "peak_bytes": found.peak}
        return run

    def _captured(self, runs: Mapping[str, Timed], lines: Mapping[str, Line]) -> dict[str, Timed]:
        graphs = {}
        for name, run in runs.items():
            try:
                graphs[name] = capture(run)
            except Exception as error:
                lines[name]["graph_reason"] = _crashed(error)["reason"]
        return graphs

    def _time(self, name: str, runs: Mapping[str, Timed], lines: Mapping[str, Line], clock: Clock) -> None:
        """Medians of all, in turns."""
        contestants = [Contestant(one, run) for one, run in runs.items()]

        def failed(one: str, error: BaseException) -> None:
            if not isinstance(error, Exception):
                raise error
            lines[one].update(_crashed(error))

        interleave(contestants, clock, POLICY, seed=self._seed, before=lambda _: None, failed=failed)
        for contestant in contestants:
            if not contestant.failed:
                found = timing([laps[-1] for laps in contestant.laps])
                lines[contestant.name][name] = rounded(found.p50_ms)
                lines[contestant.name][f"{name}_samples"] = asdict(replace(found, raw_ms=()))


def ratios(lines: Sequence[Line]) -> list[Line]:
    """The lines with their bytes and times set against those of the baseline; all lines, in order."""
    measured = {line["name"]: line for line in lines if "ms" in line}
    base = next((measured[name] for name in BASELINES if name in measured), None)
    if base is not None:
        for line in measured.values():
            line["baseline"] = base["name"]
            line["bytes_ratio"] = rounded(_bytes(base) / max(_bytes(line), 1))
            line["time_ratio"] = rounded(_milliseconds(base) / _milliseconds(line))
    return list(lines)


def _bytes(line: Line) -> float:
    found: Any = line.get("allocated_per_token", line["bytes_per_token"])
    return float(found)


def _milliseconds(line: Line) -> float:
    """Of the calls whose bytes were counted, without the host's part where the device was timed alone."""
    return float(line.get("device_ms", line["ms"]))


def _errors(actual: Tensors, expected: Tensors) -> dict[str, Error]:
    sizes = scales(expected)
    # 0 but for rounding, since a softmax stays as it is when all logits of a row move
    sizes["gradient of parameter key.bias"] = sizes["gradient of parameter query.bias"]
    return {name: Error.of(actual[name], expected[name], sizes[name]) for name in expected}


def _crashed(error: Exception) -> Line:
    words = str(error).strip().partition("\n")[0]
    return {"status": "crashed", "reason": f"{type(error).__name__}: {words}"}
