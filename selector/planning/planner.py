"""Plan a model: scan the batch sizes, and solve for the implementations at each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kernel_selector.kernels.contract import Device

from ..cost_model.features.roofline import matmul_rate
from ..errors import NothingFits
from ..text.units import format_bytes
from ..workloads.model import Model, Part, Workload, parse_batch
from .batch import best_batch
from .integer_program import Budget, Slower, Solution, solve
from .options import Option, Prices, undominated
from .plan import Layers, Plan

MIB = 2**20
BLAS_THREADS = 2  # one runs forward, the other backward
COMPILED = "torch_compile"  # what torch.compile makes of the framework's own


@dataclass(frozen=True)
class Offer:
    """A solution at one batch size, with its throughput, or the most that it may reach."""

    batch: int
    solution: Solution | Slower
    samples_per_s: float


class Planner:
    """Plans one model on one device. What a part costs is looked up once."""

    def __init__(self, prices: Prices, model: Model) -> None:
        self.model, self.device, self.training = model, prices.device, prices.training
        self._prices = prices
        self._workloads: dict[int, Workload] = {}

    def leaving(self, share: float) -> Planner:
        """A planner that leaves another share of the limit free."""
        return Planner(self._prices.under(replace(self.training, margin=share)), self.model)

    def plan(self, limit_bytes: int, batch: int | str = "auto", *, reserve: float = 1.0) -> Plan:
        """The fastest plan within the limit. `reserve` multiplies what is kept: more was found when it ran.

        Raises NothingFits, which says how much the least plan takes, and InvalidRequest for a batch that is
        neither "auto" nor a whole number from 1.
        """
        given = parse_batch(batch)
        usable = round(limit_bytes * (1 - self.training.margin))
        best = self._best(usable, given, reserve=reserve)
        if best is None:
            raise self._nothing_fits(limit_bytes, given or 1)
        own = self._best(usable, given, own=True, reserve=reserve)
        found = self._described(best, limit_bytes)
        return replace(found, default=None if own is None else self._described(own, limit_bytes, own=True))

    def least_bytes(self, batch: int = 1) -> int:
        """The lowest peak that any plan with this batch has."""
        return self._smallest(batch).peak_bytes

    def least(self, limit_bytes: int, batch: int) -> Plan:
        """The plan with the lowest peak at a batch, whether that is within the limit or not."""
        smallest = self._smallest(batch)
        step_ms = smallest.step_ms + self.training.optimizer_ms(self.model, self.device)
        return self._described(Offer(batch, smallest, 1e3 * batch / step_ms), limit_bytes)

    def _smallest(self, batch: int) -> Solution:
        smallest = self._solve(batch, 0, smallest=True)
        assert isinstance(smallest, Solution)
        return smallest

    def _best(
        self, limit: int, batch: int | None, *, own: bool = False, reserve: float = 1.0
    ) -> Offer | None:
        optimizer_ms = self.training.optimizer_ms(self.model, self.device) / self.training.accumulate
        best = 0.0  # samples a second so far: what cannot reach it is not solved

        def offer(size: int) -> Offer | None:
            nonlocal best
            within_ms = 1e3 * size / best - optimizer_ms if best else math.inf
            solution = self._solve(size, limit, own=own, reserve=reserve, within_ms=within_ms)
            if solution is None:
                return None
            reached = 1e3 * size / (solution.step_ms + optimizer_ms)
            if isinstance(solution, Solution):
                best = max(best, reached)
            # what was not solved is not above the best, rounded or not
            return Offer(size, solution, min(reached, best))

        return offer(batch) if batch is not None else best_batch(offer, lambda one: one.samples_per_s)

    def _solve(
        self,
        batch: int,
        limit: int,
        *,
        own: bool = False,
        smallest: bool = False,
        reserve: float = 1.0,
        within_ms: float = math.inf,
    ) -> Solution | Slower | None:
        workload = self._workload(batch)
        options = self._options(workload, own=own)
        budget = self._budget(workload, limit)
        if reserve != 1.0:
            options = [[one.reserving(reserve) for one in some] for some in options]
            budget = replace(budget, kept=round(budget.kept * reserve))
        return solve(
            workload.parts,
            options,
            budget,
            host=not (self.training.cuda_graphs or self.training.replayed),
            recompute=self.training.recompute and not (own or self.training.replayed),
            smallest=smallest,
            within_ms=within_ms,
        )

    def _workload(self, batch: int) -> Workload:
        if batch not in self._workloads:
            self._workloads[batch] = self.model.workload(batch)
        return self._workloads[batch]

    def _options(self, workload: Workload, *, own: bool) -> list[list[Option]]:
        """What each part can be computed by; `own`: by the framework's own, eager or compiled, where that is
        possible."""
        self._prices.look_up(workload.parts)
        every = [self._prices.options(part) for part in workload.parts]
        return [
            undominated(some)
            if part.replaceable and not own
            else _frameworks(some, compiled=part.replaceable) or list(some)
            for part, some in zip(workload.parts, every, strict=True)
        ]

    def _budget(self, workload: Workload, limit: int) -> Budget:
        model, training = self.model, self.training
        parameters, gradients = training.parameter_bytes(model), training.parameter_bytes(model)
        resident = parameters + training.copy_bytes(model) + training.state_bytes(model)
        resident += library_bytes(self.device)
        again = training.accumulate > 1
        return Budget(
            limit=limit,
            resident=resident + (gradients if again else 0),
            kept=workload.kept_bytes,
            block=workload.block_bytes,
            blocks=model.blocks,
            first_gradients=0 if again else workload.head_gradient_bytes,
            gradients=training.temporary_bytes(model) + (0 if again else gradients),
            loss=workload.loss_bytes,
            other_ms=self._other_ms(workload),
            apart=training.replayed,
        )

    def _other_ms(self, workload: Workload) -> float:
        device = self.device
        seconds = 0.0
        if workload.other_flops and device.matmul_flops_per_s:
            seconds += workload.other_flops / matmul_rate(device, self.model.dtype)
        if device.copy_bytes_per_s:
            seconds += workload.other_bytes / device.copy_bytes_per_s
        return seconds * 1e3

    def _nothing_fits(self, limit: int, batch: int) -> NothingFits:
        model, training = self.model, self.training
        fixed = training.parameter_bytes(model) + training.state_bytes(model)
        if limit <= fixed:
            return NothingFits(
                f"memory_limit={format_bytes(limit)} is less than {format_bytes(fixed)}: the parameters of "
                f"{model.name} and the state of {training.optimizer} take that before any layer runs."
            )
        return NothingFits(
            f"{model.name} does not fit into memory_limit={format_bytes(limit)} with batch {batch}: it takes "
            f"{format_bytes(self.least_bytes(batch))} or more, and "
            f"{self.training.margin:.0%} of the limit stays free. Take shorter samples, a smaller batch or "
            "more memory."
        )

    def _described(self, offer: Offer, limit: int, *, own: bool = False) -> Plan:
        workload, solution = self._workload(offer.batch), offer.solution
        assert isinstance(solution, Solution)  # the best offer was solved
        options = self._options(workload, own=own)
        layers = tuple(
            _layers(workload.parts[part], options[part][option], count)
            for (part, option), count in solution.counts.items()
        )
        return Plan(
            model=self.model.name,
            device=self.device.name,
            batch=offer.batch,
            accumulate=self.training.accumulate,
            limit_bytes=limit,
            layers=layers,
            recomputed_blocks=solution.recomputed_blocks,
            step_ms=solution.step_ms,
            device_ms=solution.device_ms,
            host_ms=solution.host_ms,
            optimizer_ms=self.training.optimizer_ms(self.model, self.device),
            samples_per_s=offer.samples_per_s,
            peak_bytes=solution.peak_bytes,
            memory=self._memory(workload, solution),
            caveats=tuple(self._caveats(layers, limit)),
            snapshot=self._prices.snapshot,
            replayed=self.training.replayed,
            compiled=tuple(sorted(self._compiled(workload))),
        )

    def _compiled(self, workload: Workload) -> set[str]:
        """The operators of which what torch.compile makes has a price."""
        priced = ((part.problem.operator, self._prices.options(part)) for part in workload.parts)
        return {name for name, some in priced if any(one.implementation == COMPILED for one in some)}

    def _memory(self, workload: Workload, solution: Solution) -> dict[str, int]:
        """The peak by what it is made of, at the moment when it is reached."""
        model, training = self.model, self.training
        resident = {
            "parameters": training.parameter_bytes(model) + training.copy_bytes(model),
            "optimizer": training.state_bytes(model),
        }
        budget = self._budget(workload, 0)
        rest = solution.peak_bytes - budget.resident
        if solution.peaks_at_end:
            activations, gradients = 0, training.parameter_bytes(model)
        else:
            activations = solution.held_bytes
            gradients = budget.gradients if budget.apart else budget.first_gradients
        again = training.parameter_bytes(model) if training.accumulate > 1 else 0
        workspace = rest - activations - (0 if again else gradients) + library_bytes(self.device)
        return {
            **resident,
            "gradients": again or gradients,
            "activations": activations,
            "workspace": workspace,
        }

    def _caveats(self, layers: tuple[Layers, ...], limit: int) -> Iterator[str]:
        """What to know before relying on the plan."""
        has = self.device.memory_bytes
        if has is not None and limit > has:
            yield (
                f"memory_limit={format_bytes(limit)} is more than the {format_bytes(has)} that "
                f"{self.device.name} has: leave it out to plan for these."
            )
        for one in layers:
            if one.remark:
                yield f"{one.part} by {one.implementation}: {one.remark}."
        shipped = sorted(self._prices.shipped)
        if shipped:
            yield f"The measurements of {', '.join(shipped)} come with this package: your database has none."
        joint = sorted(self._prices.joint)
        if joint:
            yield f"Of {', '.join(joint)} measurements that come with this package add to yours."
        if self._prices.trouble:
            yield self._prices.trouble
        used = {f"{one.operator}.{one.implementation}" for one in layers}
        old = sorted(used & self._prices.outdated)
        if old:
            yield f"Measured with an earlier version of {', '.join(old)}: profile again to be sure."


def library_bytes(device: Device) -> int:
    """Bytes that cuBLAS takes at its first products and keeps, as torch asks it to; records leave them out.

    Source: torch's `CUDABlas.cpp`, 32 MiB from Hopper on, else 8 MiB and 128 KiB.
    """
    if device.kind != "cuda":
        return 0
    from_hopper = (device.compute_capability or (0, 0)) >= (9, 0)
    return BLAS_THREADS * (32 * MIB if from_hopper else 8 * MIB + 2**17)


def _frameworks(options: Sequence[Option], *, compiled: bool) -> list[Option]:
    """The framework's own, recomputing nothing; `compiled`: what torch.compile makes of it too."""
    kept = [one for one in options if not one.recomputed]
    return undominated([one for one in kept if one.default or (compiled and one.implementation == COMPILED)])


def _layers(part: Part, option: Option, count: int) -> Layers:
    return Layers(
        part=part.name,
        operator=part.problem.operator,
        hyperparameters=dict(part.problem.values),
        implementation=option.implementation,
        default=option.default,
        recomputed=option.recomputed,
        count=count,
        device_ms=option.device_ms,
        host_ms=option.host_ms,
        held_bytes=option.held_bytes,
        source=option.source,
        remark=option.remark,
    )
