"""Options of `selector.optimize`, and the plan for a memory limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor, nn

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Problem
from kernel_selector.kernels.contract.errors import shorten

from ...errors import InvalidRequest
from ...text.units import parse_bytes
from .. import layers
from ..example import arguments_of
from ..layers import Layer
from .budget import SECONDS, Progress, budget_seconds
from .outputs import Outputs, outputs_of

if TYPE_CHECKING:
    from ...planning.plan import Plan
    from ...workloads.model import Model


DEVICE_TIME = "device_time"  # the objective of steps that are replayed as CUDA graphs
OBJECTIVES = {"throughput": "time", "memory": "memory", DEVICE_TIME: "time"}
# what a search can try beside the model as given, the cheapest first
ARRANGEMENTS = (
    *("ours", "replayed", "replayed_ours", "compiled", "compiled_ours"),
    *("reduce_overhead", "reduce_overhead_ours", "max_autotune"),
)
TRIED = ARRANGEMENTS[:-1]  # where no names are given: autotuning takes several minutes


class PlannedLayers(Protocol):
    """Layers of one kind in a plan: problem, implementation and count."""

    operator: str
    hyperparameters: Mapping[str, Any]
    implementation: str
    count: int


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Options of the search for the fastest arrangement: the asked-for names (None: by the other options),
    seconds, the limit of a step's memory in bytes, and what is told of each arrangement as it begins.
    """

    names: tuple[str, ...] | None = None
    budget_s: float = SECONDS
    memory_bytes: int | None = None
    progress: Progress | None = None


@dataclass(frozen=True, kw_only=True)
class OptimizeOptions:
    """Options of `selector.optimize`."""

    objective: str
    overrides: Mapping[str, str]
    plan: Sequence[PlannedLayers] | None
    database: Any
    outputs: Outputs | None = None  # that are used; None: all
    search: SearchOptions = SearchOptions()

    @property
    def arrangements(self) -> tuple[str, ...]:
        """Names of the arrangements to try, in order: those asked for; else all but autotuning for speed
        alone, and the replaced layers where a limit, a plan, names or memory say what these are.
        """
        asked = self.search.names
        if asked is None:
            return TRIED if self.for_speed_alone else ARRANGEMENTS[:1]
        return tuple(name for name in ARRANGEMENTS if name in asked)

    @property
    def for_speed_alone(self) -> bool:
        """Whether only the step time counts: no memory objective, plan or overrides."""
        return OBJECTIVES[self.objective] == "time" and self.plan is None and not self.overrides

    @property
    def leaves_unnamed(self) -> bool:
        """Whether layers that overrides and a plan do not name stay as they are: nothing is timed, and no
        memory objective says what these get.
        """
        return OBJECTIVES[self.objective] == "time" and not self.for_speed_alone

    def named(self, layer: Layer) -> str | None:
        """Override for a layer, by its path or its operator."""
        return self.overrides.get(layer.path) or self.overrides.get(layer.problem.operator)


class PlanImplementations:
    """Implementations of a plan, assigned layer by layer."""

    def __init__(self, plan: Sequence[PlannedLayers] | None) -> None:
        self._left: dict[Problem, list[str]] = {}
        for one in plan or ():
            problem = registry.operator(one.operator).problem(dict(one.hyperparameters))
            self._left.setdefault(problem, []).extend([one.implementation] * one.count)
        self._counts = {problem: len(names) for problem, names in self._left.items()}

    @property
    def untouched(self) -> tuple[Problem, ...]:
        """Problems of the plan of which no layer was asked for."""
        return tuple(problem for problem, count in self._counts.items() if len(self._left[problem]) == count)

    def next(self, problem: Problem, *, framework_only: bool = False) -> tuple[str, str] | None:
        """Planned implementation of a layer of a problem and the reason, or None where none is left.
        `framework_only` prefers the framework's own.
        """
        left = self._left.get(problem)
        if not left:
            return None
        default = registry.operator(problem.operator).default
        place = left.index(default) if framework_only and default in left else 0
        return left.pop(place), "as planned"


def device_of(model: nn.Module) -> str:
    """Device of a model's parameters; "cpu" for a model without parameters."""
    return next((str(tensor.device) for tensor in model.parameters()), "cpu")


def plan_within(
    memory_limit: str | int,
    model: nn.Module,
    example_inputs: Any,
    *,
    objective: str,
    outputs: object,
    database: Any,
) -> Plan:
    """Fastest plan of a model for the examples' batch within a memory limit."""
    from ...planning.ask import plan, planner_of
    from ...planning.training_setup import Training

    args, kwargs = arguments_of(example_inputs)
    sizes = [one.size(0) for one in (*args, *kwargs.values()) if isinstance(one, Tensor) and one.dim()]
    batch = sizes[0] if sizes else 1  # without samples the planner says so
    planned = rewritable(model, example_inputs, outputs_of(outputs))
    training = Training(replayed=objective == DEVICE_TIME)
    return plan(planner_of(planned, device_of(model), training, database), memory_limit, batch)


def rewritable(model: nn.Module, example_inputs: Any, outputs: Outputs | None = None) -> Model:
    """Planning model of a torch model, in which layers that `optimize` cannot replace are fixed.

    `outputs` are those that are used, as of `optimize`. Raises InvalidRequest for what cannot be planned.
    """
    from ..as_model import traced
    from .heads import linear_part, place_with, stays

    listed = layers.find(model, example_inputs)
    logits = any(stays(model, one, outputs) for one in listed)
    planned = [linear_part(one) for one in listed] if logits else listed
    fixed = {one.path for one in planned if isinstance(place_with(model, one, outputs), str)}
    return traced(model, example_inputs, logits=logits, fixed=fixed)


def search_options(
    arrangements: object = None,
    budget: object = SECONDS,
    memory_limit: str | int | None = None,
    progress: Progress | None = None,
) -> SearchOptions:
    """Validated options from the arguments of `optimize`. Raises InvalidRequest."""
    names: tuple[str, ...] | None = None
    if arrangements is not None:
        known = f"expected a tuple of names among {', '.join(ARRANGEMENTS)}, or None for all that can win."
        if not isinstance(arrangements, (tuple, list)) or not arrangements:
            raise InvalidRequest(f"arrangements={shorten(arrangements)}: {known}")
        for name in arrangements:
            if name not in ARRANGEMENTS:
                raise InvalidRequest(f"arrangements: {shorten(name)} is unknown, {known}")
        names = tuple(arrangements)
    if progress is not None and not callable(progress):
        raise InvalidRequest(f"progress={shorten(progress)}: expected a function, such as print, or None.")
    return SearchOptions(
        names=names,
        budget_s=budget_seconds(budget),
        memory_bytes=None if memory_limit is None else parse_bytes(memory_limit, "memory_limit"),
        progress=progress,
    )


def optimize_options(
    objective: str,
    overrides: Mapping[str, str] | None,
    plan: Any,
    *,
    outputs: object,
    database: Any,
    search: SearchOptions,
) -> OptimizeOptions:
    """Validated options from the arguments of `optimize`; `plan` is a plan or its layers."""
    if getattr(plan, "recomputed_blocks", 0):
        raise InvalidRequest(
            f"plan recomputes {plan.recomputed_blocks} blocks, which only the model's own code can do: "
            "checkpoint them there, or plan with a larger memory_limit."
        )
    chosen: Sequence[PlannedLayers] | None = getattr(plan, "layers", plan)
    return OptimizeOptions(
        objective=objective,
        overrides=overrides or {},
        plan=chosen,
        database=database,
        outputs=outputs_of(outputs),
        search=search,
    )
