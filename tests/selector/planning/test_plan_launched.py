"""What layers take of a device, where some records have the host's time."""

from __future__ import annotations

from dataclasses import replace

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Problem, Record
from kernel_selector.kernels.measure.timing import timing
from selector.planning.layer_costs import HOST_BOUND, of_the_device
from selector.selection.records import StepCosts
from tests.selector import replay

LAYER_NORM = registry.operator("layer_norm")


def of(rows: int, time_ms: float, graph_ms: float | None = None) -> tuple[Problem, StepCosts]:
    problem = LAYER_NORM.problem(rows=rows, hidden=64)
    found: Record = replay.record(problem, "torch_layer_norm", time_ms=time_ms, memory_bytes=64)
    found = replace(found, graph_forward_backward=None if graph_ms is None else timing([graph_ms]))
    costs = StepCosts.of(found)
    assert costs is not None
    return problem, costs


def test_a_record_near_the_hosts_least_says_nothing_of_the_device() -> None:
    graph, small = of(512, 0.10, 0.01), of(600, 0.13)
    large = of(10**6, 0.10 * HOST_BOUND + 0.01)
    assert of_the_device("torch_layer_norm", [graph, small, large]) == [graph, large]


def test_without_any_graph_all_records_count() -> None:
    records = [of(512, 0.10), of(600, 0.13)]
    assert of_the_device("torch_layer_norm", records) == records
