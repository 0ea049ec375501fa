"""Plans of whole models: from records to implementations, batch, peak and throughput; bad questions."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from torch import nn

import selector
from kernel_selector.db import Database
from kernel_selector.kernels.contract import InvalidHyperparameter, Memory, Record, Timing
from selector import InvalidRequest, NoMeasurements, NothingFits, Selector, UnknownDevice
from selector.planning.drawing import draw
from selector.planning.layer_costs import Series
from selector.planning.plan import Plan
from selector.planning.training_setup import Training
from selector.selection.records import StepCosts
from selector.workloads.model import Model, Part, Workload, problem_of
from selector.workloads.published_models import published
from tests.selector import replay

MIB = 2**20
QUIET = Training(optimizer="none", recompute=False, cuda_graphs=True, margin=0.0)
ROWS = 100
SIZES = {"hidden": 64, "inner": 256, "activation": "gelu"}
# name: milliseconds and held MiB for ROWS rows
CHARACTERS = {"torch_feed_forward": (1.0, 8), "recompute_activation": (1.5, 2)}
SLOWER = "recompute_first_linear"


def measured(name: str, rows: int) -> Record:
    """Time and bytes in proportion to the rows, and a tenth of it besides."""
    milliseconds, held = CHARACTERS.get(name, (9.0, 9))
    problem = problem_of("feed_forward", "float32", {"rows": rows, **SIZES})
    share = rows / ROWS
    time = milliseconds * (0.1 + share)
    timing = Timing(p20_ms=time, p50_ms=time, p80_ms=time, samples=9)
    return replace(
        replay.record(problem, name, time_ms=time, memory_bytes=0),
        forward=replace(timing, p20_ms=time / 3, p50_ms=time / 3, p80_ms=time / 3),
        graph_forward_backward=timing,
        memory=Memory(
            peak_bytes=round((held * share + 1) * MIB),
            held_bytes=round(held * share * MIB),
            workspace_bytes=0,
            kept_argument_bytes=0,
        ),
    )


def workload(batch: int) -> Workload:
    """Ten feed-forward layers of ROWS rows a sample, which keep nothing else."""
    problem = problem_of("feed_forward", "float32", {"rows": ROWS * batch, **SIZES})
    return Workload(
        parts=(Part(name="feed-forward", problem=problem, count=10, output_bytes=0, per_block=1),),
        kept_bytes=0,
        block_bytes=MIB * batch // 4,
    )


MODEL = Model(name="ten layers", parameters=2**18, dtype="float32", blocks=10, workload=workload)


@pytest.fixture
def database(selector_of: Callable[..., Selector], sqlite_database: Database) -> Database:
    """Of the two implementations at two numbers of rows."""
    selector_of([measured(name, rows) for name in CHARACTERS for rows in (ROWS, 4 * ROWS)])
    return sqlite_database


def planned(database: Database, limit: object = None, batch: int | str = "auto", **more: Any) -> Plan:
    given = {"training": QUIET, **more}
    return selector.plan(MODEL, "cpu", limit, batch, database=database, **given)  # type: ignore[arg-type]


def test_a_plan_gives_memory_to_the_faster_implementation(database: Database) -> None:
    # one MiB of parameters, one of workspace; 48 for layers: five of 8 MiB and four of 2, and another of 2
    found = planned(database, 52 * MIB, batch=1)
    assert found.choices() == {"feed-forward": {"torch_feed_forward": 5, "recompute_activation": 5}}
    assert found.peak_bytes == 52 * MIB
    assert found.memory == {
        "parameters": MIB,
        "optimizer": 0,
        "gradients": 0,
        "activations": 50 * MIB,
        "workspace": MIB,
    }
    assert found.step_ms == pytest.approx(1.1 * (5 * 1.0 + 5 * 1.5))
    assert found.caveats == ()
    assert {one.source for one in found.layers} == {"exact"}


def test_the_batch_is_what_trains_most_samples(database: Database) -> None:
    found = planned(database, 200 * MIB)
    assert found.batch > 1
    assert found.peak_bytes <= 200 * MIB
    assert found.samples_per_s == pytest.approx(1e3 * found.batch / found.step_ms)
    for batch in range(1, 2 * found.batch):
        try:
            other = planned(database, 200 * MIB, batch=batch)
        except NothingFits:
            break
        assert other.samples_per_s <= found.samples_per_s * 1.01
    assert found.default is not None
    assert found.default.choices() == {"feed-forward": {"torch_feed_forward": 10}}
    assert found.speed_up == pytest.approx(found.samples_per_s / found.default.samples_per_s)


def test_between_measured_batches_figures_are_on_the_line(database: Database) -> None:
    found = planned(database, "1GiB", batch=2)
    (layers,) = found.layers
    assert (layers.source, layers.implementation) == ("series", "torch_feed_forward")
    assert layers.device_ms == pytest.approx(2.1)
    assert layers.held_bytes == pytest.approx(16 * MIB, rel=1e-6)
    assert "beyond the series" in " ".join(planned(database, "1GiB", batch=8).caveats)


def test_what_was_scaled_does_not_beat_what_was_measured(
    selector_of: Callable[..., Selector], sqlite_database: Database
) -> None:
    own = [measured(name, rows) for name in ("torch_feed_forward", SLOWER) for rows in (ROWS, 4 * ROWS)]
    other = measured("recompute_activation", ROWS)
    sizes = {"rows": ROWS, **SIZES, "inner": 512}
    selector_of([*own, replace(other, problem=problem_of("feed_forward", "float32", sizes))])
    with pytest.raises(NothingFits):
        planned(sqlite_database, 52 * MIB, batch=1)
    assert planned(sqlite_database, "1GiB", batch=1).choices() == {"feed-forward": {"torch_feed_forward": 10}}
    unwanted = replace(QUIET, exclude=("torch_feed_forward",))
    plan = planned(sqlite_database, "1GiB", batch=1, training=unwanted)
    assert plan.choices() == {"feed-forward": {SLOWER: 10}}


def test_optimizer_gradients_and_micro_batches_count(database: Database) -> None:
    plain = planned(database, "1GiB", batch=1)
    adamw = planned(database, "1GiB", batch=1, training=replace(QUIET, optimizer="fused_adamw"))
    assert adamw.peak_bytes - plain.peak_bytes == 2 * MIB
    assert adamw.memory["optimizer"] == 2 * MIB
    assert adamw.samples_per_s < plain.samples_per_s
    again = planned(database, "1GiB", batch=1, training=replace(QUIET, accumulate=4))
    assert again.peak_bytes - plain.peak_bytes == MIB
    assert again.memory["gradients"] == MIB
    mixed = replace(QUIET, parameter_dtype="float64")
    assert planned(database, "1GiB", batch=1, training=mixed).memory["parameters"] == 3 * MIB


def test_a_share_of_the_limit_stays_free(database: Database) -> None:
    found = planned(database, 52 * MIB, batch=1, training=replace(QUIET, margin=0.25))
    assert found.limit_bytes == 52 * MIB
    assert found.peak_bytes <= 39 * MIB


def test_blocks_run_twice_where_that_is_allowed(database: Database) -> None:
    with pytest.raises(NothingFits):
        planned(database, 15 * MIB, batch=1)
    found = planned(database, 15 * MIB, batch=1, training=replace(QUIET, recompute=True))
    assert found.recomputed_blocks > 0
    assert found.peak_bytes <= 15 * MIB
    assert "recomputed in backward" in found.explain()
    with pytest.raises(NothingFits):  # graphs of blocks run them once
        planned(database, 15 * MIB, batch=1, training=replace(QUIET, recompute=True, replayed=True))
    replayed = planned(database, batch=1, training=replace(QUIET, replayed=True))
    assert "selector.replay" in replayed.explain()


def test_the_memory_of_the_device_is_the_limit_where_none_is_given(database: Database) -> None:
    assert planned(database, batch=1).limit_bytes == replay.HERE.memory_bytes


def test_a_plan_is_measured_and_solved_again_where_the_peak_is_over(database: Database) -> None:
    seen: list[Plan] = []

    def measure(plan: Plan) -> int:
        seen.append(plan)
        return round(2 * MIB + 1.2 * sum(one.count * one.held_bytes for one in plan.layers))

    found = planned(database, 60 * MIB, measure=measure)
    assert len(seen) > 1
    assert found.measured_peak_bytes is not None
    assert found.measured_peak_bytes <= 60 * MIB
    assert "measured peak" in found.explain()
    with pytest.raises(NothingFits, match="when it was run"):
        planned(database, 60 * MIB, measure=lambda plan: plan.limit_bytes + 1)


def test_a_plan_goes_through_json(database: Database) -> None:
    found = planned(database, 100 * MIB)
    assert Plan.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    text = found.explain()
    assert "feed_forward.torch_feed_forward" in text
    assert "framework's own" in text


def test_more_memory_never_trains_slower(database: Database) -> None:
    points = selector.pareto(MODEL, "cpu", "200MiB", training=QUIET, database=database)
    rates = [point.samples_per_s for point in points]
    assert rates == sorted(rates)
    assert all(point.peak_bytes <= point.limit_bytes for point in points)
    picture = ElementTree.fromstring(draw(points, "ten layers & more"))
    assert len(picture.findall("{http://www.w3.org/2000/svg}polyline")) == 2
    one = selector.pareto(MODEL, "cpu", memory_limits=["40MiB", "1MiB"], training=QUIET, database=database)
    assert [point.limit_bytes for point in one] == [40 * MIB]


def test_what_does_not_fit_says_what_would(database: Database) -> None:
    with pytest.raises(NothingFits, match=r"takes 22 MiB or more"):
        planned(database, 10 * MIB, batch=1)
    with pytest.raises(NothingFits, match="parameters"):
        planned(database, MIB // 2, batch=1)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"limit": "much"}, InvalidRequest, "memory_limit='much'"),
        ({"batch": 0}, InvalidRequest, "batch=0"),
        ({"batch": "some"}, InvalidRequest, "some"),
    ],
)
def test_bad_questions_are_refused(
    database: Database, change: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        planned(database, **change)


def test_unknown_models_devices_and_trainings_are_refused(database: Database) -> None:
    for model in ("bert-huge", 7, (nn.Linear(1, 1),)):
        with pytest.raises((InvalidRequest, InvalidHyperparameter), match=r"bert-huge|expected a published"):
            selector.plan(model, "cpu", database=database)
    with pytest.raises(UnknownDevice):
        selector.plan("bert-large", "h900", database=database)
    with pytest.raises(InvalidRequest, match="adamx"):
        Training(optimizer="adamx")
    with pytest.raises(InvalidRequest, match="accumulate=0"):
        Training(accumulate=0)
    for margin in (1.0, -0.1, 1, "5%"):
        with pytest.raises(InvalidRequest, match="margin="):
            Training(margin=margin)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="float12"):
        Training(parameter_dtype="float12")
    with pytest.raises(InvalidHyperparameter, match="Unknown size 'sequence'"):
        published("bert-large", sequence=128)
    with pytest.raises(InvalidHyperparameter, match="expected int"):
        published("bert-large", seq="128")
    with pytest.raises(InvalidHyperparameter, match="from 1"):
        published("bert-large", seq=0)


def test_a_device_without_measurements_and_rates_is_refused(database: Database) -> None:
    with pytest.raises(NoMeasurements, match="selector profile"):
        selector.plan("bert-large", "a100 80gb", database=database)


def test_figures_of_other_sizes_are_scaled_by_the_work() -> None:
    record = measured("torch_feed_forward", ROWS)
    costs = StepCosts.of(record)
    assert costs is not None
    series = Series("torch_feed_forward", [(record.problem, costs)])
    wider = problem_of("feed_forward", "float32", {"rows": ROWS, **SIZES, "inner": 512})
    found = series.figures(wider, replay.HERE)
    assert found is not None
    assert (found.source, found.remark) == ("scaled", "scaled from inner=256")
    assert found.device_ms == pytest.approx(2 * 1.1, rel=0.1)
    dropping = problem_of("feed_forward", "float32", {"rows": ROWS, **SIZES, "dropout": 0.1})
    assert series.figures(dropping, replay.HERE) is not None
    other = problem_of("feed_forward", "float32", {"rows": ROWS, **SIZES, "activation": "relu"})
    assert series.figures(other, replay.HERE) is None


class Small(nn.Module):
    """Two feed-forward blocks with something between them that there are no implementations of."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (
            nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(2)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).sin().exp())


def test_a_module_is_planned_by_its_layers(database: Database) -> None:
    inputs = torch.randn(2, ROWS, 64)
    model = Small()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = selector.plan((model, inputs), "cpu", "1GiB", 4, training=QUIET, database=database)
    assert found.model == "Small"
    assert sum(one.count for one in found.layers) >= 2
    # sin keeps its argument, exp its result: two tensors [4, ROWS, 64] in float32
    assert found.memory["parameters"] == sum(value.numel() for value in model.parameters()) * 4
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    with pytest.raises(InvalidRequest, match=r"model.train\(\)"):
        selector.plan((model.eval(), inputs), "cpu", database=database)
    with pytest.raises(InvalidRequest, match="samples"):
        selector.plan((nn.Linear(4, 4), torch.tensor(1.0)), "cpu", database=database)


@pytest.mark.parametrize(("memory_bytes", "said"), [(2 * 2**30, True), (4 * 2**30, False), (None, False)])
def test_a_limit_beyond_the_memory_of_the_device_is_said(
    database: Database, memory_bytes: int | None, said: bool
) -> None:
    device = replace(replay.HERE, memory_bytes=memory_bytes)
    plan = selector.plan(MODEL, device, 4 * 2**30, 1, training=QUIET, database=database)
    assert any("is more than the 2 GiB" in one for one in plan.caveats) is said
