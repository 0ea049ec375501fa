"""Training steps of a model: throughput, peak memory, the largest batch under a cap, and losses."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.common.figures import rounded
from benchmarks.common.result import read_result
from benchmarks.models._catalogue import Subject
from benchmarks.models._timeline import timeline
from benchmarks.models._transformer import quiet
from benchmarks.models._variants import Variant
from kernel_selector.kernels.contract import Device
from kernel_selector.kernels.runtime.building import without_draws

WARM_UP, TIMED = 3, 10  # steps
TRIES = 4  # at a cap, each with a sixteenth less
MULTIPLE = 8  # batches above twice this are multiples of it
LEARNING_RATE = 1e-4
CYCLE = 8  # batches of a loss curve, again and again: so few are learned within its steps

Line = dict[str, Any]


class Earlier:
    """Lines that earlier calls wrote into a file on the same commit: `rows` and, of loss curves, `losses`."""

    def __init__(self, file: Path, commit: str) -> None:
        found = read_result(file, needs=("rows", "losses")) if file.exists() else {}
        if found.get("commit") != commit:
            found = {}
        self.rows: list[Line] = list(found.get("rows", ()))
        self.losses: list[Line] = list(found.get("losses", ()))

    def has(
        self,
        variant: str,
        *,
        batch: int | None = None,
        cap_bytes: int | None = None,
        dropout: bool | None = None,
    ) -> bool:
        """Whether a variant has a line: of a batch without a cap, under a cap, or of losses by dropout."""
        if dropout is not None:
            return any((one["variant"], one["dropout"]) == (variant, dropout) for one in self.losses)
        return any(
            one["variant"] == variant
            and one["cap_bytes"] == cap_bytes
            and (cap_bytes is not None or one["batch"] == batch)
            for one in self.rows
        )


class Trainer:
    """Trains variants of one model, one at a time, on one device."""

    def __init__(
        self,
        subject: Subject,
        device: Device,
        torch_device: str,
        *,
        dtype: str,
        seed: int,
        rate: float = LEARNING_RATE,
        kernels: bool = False,
    ) -> None:
        self._kernels = kernels
        self.subject, self._device, self._torch_device, self._rate = subject, device, torch_device, rate
        self._dtype_name, self._dtype, self._seed = dtype, getattr(torch, dtype), seed
        if self.on_gpu:
            torch.cuda.set_device(torch_device)

    @property
    def on_gpu(self) -> bool:
        """Whether there is memory to cap and to count."""
        return self._torch_device != "cpu"

    def run(self, variant: Variant, batch: int, cap_bytes: int | None = None) -> Line:
        """Some steps of a batch. Figures, or the reason why there are none; nothing is raised."""
        line: Line = {"variant": variant.name, "batch": batch, "cap_bytes": cap_bytes, "status": "ok"}
        self._forget(cap_bytes)
        try:
            return {**line, **self._timed(variant, batch)}
        except torch.OutOfMemoryError as error:
            return {**line, "status": "out_of_memory", "reason": _first_line(error)}
        except Exception as error:
            return {**line, "status": "failed", "reason": _first_line(error)}
        finally:
            self._forget(None)

    def under(self, variant: Variant, cap_bytes: int, probes: list[Line]) -> Line:
        """The largest batch that fits under a cap, from the peaks of two probes, and what it reaches."""
        batch = variant.batch or largest(probes, cap_bytes)
        if batch is None:
            return {**probes[-1], "cap_bytes": cap_bytes}
        line: Line = {}
        for _ in range(TRIES):
            line = self.run(variant, batch, cap_bytes)
            if line["status"] != "out_of_memory" or variant.batch is not None or batch == 1:
                break
            batch = _even(min(batch - batch // 16, batch - 1))
        return {**line, **({"planned": dict(variant.planned)} if variant.planned else {})}

    def losses(self, variant: Variant, batch: int, steps: int, *, dropout: bool) -> Line:
        """The loss of each step, on the same batches and from the same weights for every variant."""
        line: Line = {"variant": variant.name, "batch": batch, "dropout": dropout, "status": "ok"}
        self._forget(None)
        try:
            torch.manual_seed(self._seed)
            step = self._prepared(variant, batch, self._inputs(batch, 0), dropout=dropout)
            given = [self._inputs(batch, index) for index in range(CYCLE)]
            found = [step(given[index % CYCLE]) for index in range(steps)]
            return {**line, "losses": [_finite(one) for one in found]}
        except Exception as error:
            return {**line, "status": "failed", "reason": _first_line(error)}
        finally:
            self._forget(None)

    def _timed(self, variant: Variant, batch: int) -> Line:
        torch.manual_seed(self._seed)
        inputs = self._inputs(batch, 0)
        step = self._prepared(variant, batch, inputs, dropout=True)
        if self.on_gpu:
            torch.cuda.empty_cache()  # what preparing it took is not reserved for its steps
        for _ in range(WARM_UP):
            step(inputs)
        self._wait()
        if self.on_gpu:
            torch.cuda.reset_peak_memory_stats(self._torch_device)
        start = time.perf_counter()
        for _ in range(TIMED):
            loss = step(inputs)
        issued = (time.perf_counter() - start) / TIMED
        self._wait()
        seconds = (time.perf_counter() - start) / TIMED
        peak = torch.cuda.max_memory_allocated(self._torch_device) if self.on_gpu else None
        reserved = torch.cuda.max_memory_reserved(self._torch_device) if self.on_gpu else None
        if variant.graphs_apart:
            peak = reserved  # what graphs reuse among themselves is not counted as allocated
        more = {"timeline": timeline(lambda: step(inputs))} if self._kernels and self.on_gpu else {}
        return {
            "step_ms": rounded(seconds * 1e3),
            "issued_ms": rounded(issued * 1e3),  # the host is through with a step; about all of it binds
            "samples_per_s": rounded(batch / seconds),
            "peak_bytes": peak,
            "reserved_bytes": reserved,
            "loss": _finite(loss),
            "parts": self._used,
            "graphs": variant.graphs_apart,
            "versions": dict(self._versions),
            **more,
        }

    def _prepared(
        self, variant: Variant, batch: int, inputs: tuple[Tensor, ...], *, dropout: bool
    ) -> Callable[[tuple[Tensor, ...]], Tensor]:
        """One whole step of training; it gives the loss."""
        parts = variant.parts(self._dtype_name, self._device)
        with without_draws():
            model = self.subject.build(batch, parts)
        self._used, self._versions = parts.used, parts.versions
        model = model.to(self._torch_device, self._dtype)
        self._draw(model)
        if not dropout:
            quiet(model)
        call = variant.finished(model, inputs)
        optimizer = torch.optim.AdamW(model.parameters(), lr=self._rate, fused=self.on_gpu)

        def step(inputs: tuple[Tensor, ...]) -> Tensor:
            optimizer.zero_grad(set_to_none=True)
            loss = call(*inputs)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            return loss.detach()

        return step

    def _draw(self, model: torch.nn.Module) -> None:
        """The same weights for every variant: implementations draw theirs in orders of their own."""
        generator = torch.Generator(self._torch_device).manual_seed(self._seed)
        for name, parameter in sorted(model.named_parameters()):
            if parameter.dim() > 1:
                bound = parameter.size(-1) ** -0.5
                with torch.no_grad():
                    parameter.uniform_(-bound, bound, generator=generator)
            else:  # of a norm, or a bias
                torch.nn.init.constant_(parameter, "bias" not in name.rpartition(".")[2])

    def _inputs(self, batch: int, index: int) -> tuple[Tensor, ...]:
        return self.subject.inputs(batch, self._seed + index, self._torch_device, self._dtype)

    def _wait(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize(self._torch_device)

    def _forget(self, cap_bytes: int | None) -> None:
        """Give everything back, and allow so many bytes from here on (None: all)."""
        torch.compiler.reset()
        gc.collect()
        if self.on_gpu:
            torch.cuda.empty_cache()
            total = torch.cuda.get_device_properties(self._torch_device).total_memory
            share = 1.0 if cap_bytes is None else min(cap_bytes / total, 1.0)
            torch.cuda.set_per_process_memory_fraction(share, self._torch_device)


def largest(probes: list[Line], cap_bytes: int) -> int | None:
    """The batch whose peak, on the line through two probes, is the cap; None without two good probes."""
    good = [one for one in probes if one["status"] == "ok" and one.get("peak_bytes")]
    if len(good) < 2:
        return None
    low, high = good[:2]
    slope = (high["peak_bytes"] - low["peak_bytes"]) / (high["batch"] - low["batch"])
    fixed = low["peak_bytes"] - slope * low["batch"]
    batch = int((cap_bytes - fixed) / max(slope, 1))
    return _even(batch) if batch >= 1 else None


def _finite(loss: Tensor) -> float | None:
    """The loss; None where it is no number any more, which JSON cannot hold."""
    value = float(loss)
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _even(batch: int) -> int:
    return batch if batch < 2 * MULTIPLE else batch // MULTIPLE * MULTIPLE


def _first_line(error: Exception) -> str:
    words = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {words[:300]}"
