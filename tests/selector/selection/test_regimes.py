"""Measurements of layers compiled with neighbours, apart from those of layers launched one by one."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import selector
from kernel_selector.db import Database, freshness_rows, records, snapshot
from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device, Record, Status
from selector import Choice, InvalidRequest, Query, Selector
from selector.exchange import export as transfer
from selector.profiling.run import missing
from selector.profiling.winners import winners
from selector.selection.evidence import Evidence
from selector.selection.knowledge import Knowledge
from selector.selection.query_log import is_uncertain
from selector.selection.snapshot import Body
from selector.training.dataset import build_dataset
from tests.selector import replay
from tests.selector.replay_session import ReplaySession

LSTM = registry.operator("lstm")
VERSIONS = {name: one.version for name, one in registry.implementations("lstm").items()}
LATER = timedelta(hours=1)


def compiled(found: Iterable[Record]) -> list[Record]:
    """The records as if measured later, compiled with neighbours: the slowest a thousand times as fast."""
    made = []
    for record in found:
        total = record.total
        assert total is not None
        ms = 1e-3 / total.p50_ms
        timing = replace(total, p20_ms=ms, p50_ms=ms, p80_ms=ms, raw_ms=())
        times = {"forward": timing, "forward_backward": record.forward_backward and timing}
        made.append(replace(record, regime="compiled", measured_at=record.measured_at + LATER, **times))
    return made


def sweep() -> list[Record]:
    return list(replay.sweep(list(replay.problems(hidden=(64, 128, 100), batch=(8, 32), seq=(10,)))))


def answers(selector: Selector) -> list[dict[str, Any]]:
    """Choices of measured, near and other problems, without the id of all measurements."""
    asked = [{"hidden": hidden, "batch": batch, "seq": 10} for hidden in (64, 80, 700) for batch in (8, 100)]
    return [{**selector.choose("lstm", **one).to_dict(), "snapshot": ""} for one in asked]


@pytest.mark.usefixtures("here")
def test_compiled_records_change_no_choice_of_launched_layers(sqlite_database: Database) -> None:
    with sqlite_database.write() as connection:
        records.add(connection, sweep())
    before = answers(Selector(sqlite_database))
    failed = [
        replace(one, regime="compiled", status=Status.INCORRECT, reason="wrong", memory=None)
        for one in sweep()
        if one.implementation == before[0]["implementation"]
    ]
    with sqlite_database.write() as connection:
        assert records.add(connection, [*compiled(sweep()), *failed]) == len(sweep()) + len(failed)
    assert answers(Selector(sqlite_database)) == before
    assert answers(Selector(sqlite_database, frozen=True)) == before


@pytest.mark.usefixtures("here")
def test_compiled_records_alone_are_no_evidence_of_launched_layers(sqlite_database: Database) -> None:
    with sqlite_database.write() as connection:
        records.add(connection, compiled(sweep()))
    for found in answers(Selector(sqlite_database)):
        assert (found["source"], found["time_ms"]) == ("default", None)


@pytest.mark.usefixtures("here")
def test_an_earlier_state_takes_over_each_regime_by_itself(sqlite_database: Database) -> None:
    found, pair = sweep(), ("lstm", replay.HERE.key)
    half = len(found) // 2
    with sqlite_database.write() as connection:
        records.add(connection, [*found, *compiled(found[:half])])
    earlier = Body(sqlite_database, wanted=[pair])
    with sqlite_database.write() as connection:
        records.add(connection, compiled(found[half : half + 2]))
    later, anew = Body(sqlite_database, wanted=[pair], earlier=earlier), Body(sqlite_database, wanted=[pair])
    for regime in ("launched", "compiled", "graph"):
        mine, theirs = (body.measurements(*pair) for body in (later, anew))
        assert isinstance(mine, Evidence)
        assert isinstance(theirs, Evidence)
        mine, theirs = mine.in_regime(regime), theirs.in_regime(regime)
        assert mine.groups == theirs.groups
        assert mine.settings == theirs.settings
        assert bool(mine.problems) == (regime != "graph")


def test_nothing_learns_from_compiled_records() -> None:
    found = sweep()
    dataset = build_dataset(LSTM, [*found, *compiled(found)], [replay.HERE])
    assert dataset.records == build_dataset(LSTM, found, [replay.HERE]).records
    assert {one.regime for one in dataset.measured} == {"launched"}
    assert Evidence([*found, *compiled(found)], VERSIONS).groups == Evidence(found, VERSIONS).groups


@pytest.mark.parametrize("place", ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def test_the_database_keeps_regimes_apart(place: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue("postgres_url") if place == "postgresql" else tmp_path / "records.sqlite"
    with Database.open(url, create=True) as database:
        keeps_regimes_apart(database)


def keeps_regimes_apart(database: Database) -> None:
    found = sweep()[:3]
    with database.write() as connection:
        records.add(connection, found)
        before = snapshot(connection)
        assert records.add(connection, compiled(found)) == 3
        assert snapshot(connection) != before
    with database.read() as connection:
        assert list(records.find(connection)) == found
        assert list(records.find(connection, regime="compiled")) == compiled(found)
        assert list(records.find(connection, regime=None)) == [*found, *compiled(found)]
        kept = list(records.newest(connection, operator="lstm", device_key=replay.HERE.key))
        assert [one.regime for one in kept] == ["launched"] * 3 + ["compiled"] * 3
        stored = records.page(connection, after=0, limit=9, equal={"regime": "compiled"})
        assert [one.record for one in stored] == compiled(found)
        first, second = found[0], compiled(found)[0]
        for record in (first, second):
            figures = records.figures_by_author(connection, record, [record.implementation_version])
            assert record.total is not None
            name = "forward_backward" if record.total is record.forward_backward else "forward"
            assert {who: [one[name] for one in sent] for who, sent in figures.items()} == {
                None: [record.total.undisturbed_ms]
            }
        asked: Mapping[str, Any] = {
            "operator": "lstm",
            "device": first.device,
            "environment": first.environment,
            "policy": first.policy,
        }
        finished = Counter(regime for *_, regime in records.finished(connection, **asked))
        assert finished == {"launched": 3, "compiled": 3}
        assert len(list(freshness_rows.freshness_rows(connection))) == 3


def test_regimes_survive_a_file_and_another_database(sqlite_database: Database, tmp_path: Path) -> None:
    found = [*sweep()[:3], *compiled(sweep()[:3])]
    with sqlite_database.write() as connection:
        records.add(connection, found)
    assert transfer.export(tmp_path / "all.jsonl", sqlite_database) == 6
    lines = (tmp_path / "all.jsonl").read_text().splitlines()
    assert [Record.from_json(line) for line in lines] == found
    with Database.open(tmp_path / "other.sqlite", create=True) as other:
        assert transfer.merge(sqlite_database, other).new.total() == 6
        assert transfer.merge(sqlite_database, other).new.total() == 0
        with other.read() as connection:
            assert list(records.find(connection, regime=None)) == found


def test_a_run_measures_what_is_missing_in_its_regime(sqlite_database: Database) -> None:
    problem = LSTM.problem(hidden=64, batch=8)
    found = list(replay.sweep([problem]))
    with sqlite_database.write() as connection:
        records.add(connection, found)
    session: Any = ReplaySession()
    waiting = set(VERSIONS) - {one.implementation for one in found}
    assert set(missing(sqlite_database, session, [problem])[problem]) == waiting
    assert winners(sqlite_database, session, [problem])["lstm"]
    session.policy = session.policy.in_regime("compiled")
    assert missing(sqlite_database, session, [problem]) == {problem: list(VERSIONS)}
    assert winners(sqlite_database, session, [problem]) == {"lstm": {}}


LAYER = {"hidden": 64, "batch": 8, "seq": 10}


@pytest.fixture
def both(selector_of: Any) -> Selector:
    """A Selector over measurements in both regimes: the slowest launched one is the fastest compiled."""
    made: Selector = selector_of([*sweep(), *compiled(sweep())])
    return made


def test_compiled_layers_are_chosen_by_what_was_measured_compiled(both: Selector) -> None:
    launched, found = both.choose("lstm", **LAYER), both.choose("lstm", **LAYER, regime="compiled")
    assert (launched.source, found.source) == ("exact", "exact")
    assert launched.implementation != found.implementation
    slowest = max(launched.candidates, key=lambda one: one.time_ms or 0.0)
    assert found.implementation == slowest.name
    assert found.time_ms == pytest.approx(1e-3 / (slowest.time_ms or 0.0), rel=0.2)
    assert (launched.regime, found.regime) == ("launched", "compiled")
    assert not any("compiled" in caveat for caveat in found.caveats)
    assert "Regime      compiled with neighbours" in found.explain()
    assert "Regime" not in launched.explain()
    assert found.basis is not None
    assert found.basis.most_similar is not None
    assert found.basis.most_similar.times_ms[found.implementation] == found.time_ms


def test_near_problems_answer_by_the_same_rule(both: Selector) -> None:
    found = both.choose("lstm", hidden=64, batch=9, seq=10, regime="compiled")
    assert (found.source, found.regime) == ("near", "compiled")
    assert found.implementation == both.choose("lstm", **LAYER, regime="compiled").implementation


@pytest.mark.parametrize("where", ["nowhere", "far away", "of one implementation"])
def test_without_comparable_measurements_the_choice_of_launched_layers_says_so(
    where: str, selector_of: Any
) -> None:
    far = list(replay.sweep([LSTM.problem(hidden=512, batch=128, seq=200)]))
    one = [record for record in sweep() if record.implementation == "hoisted"]
    selector = selector_of(
        [*sweep(), *compiled({"far away": far, "of one implementation": one}.get(where, []))]
    )
    launched, found = selector.choose("lstm", **LAYER), selector.choose("lstm", **LAYER, regime="compiled")
    assert found.regime == "compiled"
    expected = {**launched.to_dict(), "regime": "compiled", "caveats": list(found.caveats)}
    assert found.to_dict() == expected
    (caveat,) = set(found.caveats) - set(launched.caveats)
    assert caveat == (
        f"Nothing comparable was measured compiled with neighbours on {replay.HERE.name}: this is the choice "
        "of launched layers, with their figures, among what a graph of torch.compile holds: "
        f"`selector profile {found.problem.key} --regime compiled` measures it."
    )
    packed = selector.choose("lstm", **LAYER, packed=True, regime="compiled")
    assert any(one.endswith("a graph of torch.compile holds.") for one in packed.caveats)


GPU = replay.recorded(device_kind="cuda")


ALONE = next(one for one in GPU if one.total is not None and one.implementation == "hoisted")
FASTER = {"hoisted": 50.0}


def compiled_by(record: Record, factors: Mapping[str, float] = FASTER, *, size: float = 1.0) -> Record:
    """The record as if compiled with neighbours, so many times as fast, of a peak so many times as large."""
    factor = factors.get(record.implementation, 1.0)
    whole = {name: getattr(record, name) for name in ("forward", "forward_backward")}
    faster = {
        name: replace(
            one, **{f"p{at}_ms": getattr(one, f"p{at}_ms") / factor for at in (20, 50, 80)}, raw_ms=()
        )
        for name, one in whole.items()
        if one is not None
    }
    assert record.memory is not None
    memory = replace(record.memory, peak_bytes=int(record.memory.peak_bytes * size))
    return replace(record, regime="compiled", memory=memory, **faster)


def both_ways(factors: Mapping[str, float] = FASTER, *, size: float = 1.0) -> list[Record]:
    """What was measured on a GPU, launched, and all but one problem compiled with neighbours too."""
    good = [one for one in GPU if one.total is not None and one.problem != ALONE.problem]
    return [*GPU, *(compiled_by(one, factors, size=size) for one in good)]


def asked(selector: Selector, device: Device, **more: Any) -> tuple[Choice, Choice]:
    """The choices for the problem that was launched alone, in both regimes."""
    given: dict[str, Any] = {**ALONE.problem.as_dict, "device": device, **more}
    return selector.choose("lstm", **given), selector.choose("lstm", **given, regime="compiled")


def times_of(choice: Choice) -> dict[str, float]:
    return {one.name: one.time_ms for one in choice.candidates if one.time_ms is not None}


HERE = replace(ALONE.device, host="")
ALIKE = replace(HERE, name="Another GPU")


@pytest.fixture(scope="module")
def on_a_gpu(tmp_path_factory: pytest.TempPathFactory) -> Selector:
    """A Selector over layers of a GPU of which the hoisted one is fifty times as fast compiled."""
    path = tmp_path_factory.mktemp("regimes") / "measurements.sqlite"
    with Database.open(path, create=True) as database, database.write() as connection:
        records.add(connection, both_ways())
    return Selector(path, shipped=False)


@pytest.mark.parametrize("device", [HERE, ALIKE], ids=["here", "on a GPU like it"])
def test_times_of_launched_layers_are_corrected_by_what_was_measured_both_ways(
    device: Device, on_a_gpu: Selector
) -> None:
    launched, found = asked(on_a_gpu, device)
    assert launched.implementation != "hoisted"
    assert (found.implementation, found.source, found.regime) == ("hoisted", "transfer", "compiled")
    mine, theirs = times_of(found), times_of(launched)
    assert mine["hoisted"] < theirs["hoisted"] / 10
    assert mine[LSTM.default] > theirs[LSTM.default] / 2
    (caveat,) = [one for one in found.caveats if "measured compiled with neighbours" in one]
    assert re.search(rf"both ways, \d+ measurements on {HERE.name}: `selector profile", caveat)
    assert found.explain()


def test_a_share_that_was_not_measured_both_ways_is_corrected_as_the_other(selector_of: Any) -> None:
    """Else what the host takes longest for would compare as if it had no neighbours."""
    slower = dict.fromkeys(VERSIONS, 0.1)
    one = next(one for one in both_ways(slower) if one.regime == "compiled")
    some = [each for each in both_ways(slower) if each.regime == "launched" or each.problem == one.problem]
    for choice in asked(selector_of(some), HERE)[1:]:
        launched = times_of(asked(selector_of(GPU), HERE)[0])
        assert choice.source == "transfer"
        for name, time_ms in times_of(choice).items():
            assert time_ms > 2 * launched[name]


def test_bytes_of_launched_layers_are_corrected_too(selector_of: Any) -> None:
    launched, found = asked(selector_of(both_ways(size=3.0)), HERE)
    peaks = {one.name: one.memory_bytes for one in launched.candidates if one.memory_bytes}
    for one in found.candidates:
        if one.memory_bytes:
            assert one.memory_bytes == pytest.approx(3 * peaks[one.name], rel=0.15)


def test_a_measurement_of_ones_own_hides_nothing_that_another_gpu_corrects(selector_of: Any) -> None:
    own = [replace(one, device=ALIKE) for one in GPU if one.total is not None]
    some = next(one for one in own if one.problem != ALONE.problem and one.implementation == LSTM.default)
    selector = selector_of([*both_ways(), *own, compiled_by(some)])
    found = asked(selector, ALIKE)[1]
    assert (found.implementation, found.source) == ("hoisted", "transfer")
    (caveat,) = [one for one in found.caveats if "measured compiled with neighbours" in one]
    assert f"both ways, 1 measurement on {ALIKE.name} and " in caveat


@pytest.mark.parametrize("lacks", [{"matmul_flops_per_s": {}}, {"copy_bytes_per_s": None}], ids=str)
def test_without_rates_of_a_gpu_nothing_is_corrected(lacks: Mapping[str, Any], selector_of: Any) -> None:
    device = replace(ALONE.device, **lacks)
    selector = selector_of([replace(one, device=device) for one in both_ways()])
    launched, found = asked(selector, device)
    assert (found.implementation, found.source) == (launched.implementation, launched.source)
    assert any("this is the choice of launched layers" in caveat for caveat in found.caveats)


def test_an_answer_without_times_claims_no_corrected_ones(selector_of: Any) -> None:
    compiled_alone = [one for one in both_ways() if one.regime == "compiled"]
    found = asked(selector_of(compiled_alone), HERE)[1]
    assert found.time_ms is None
    assert not any("corrected" in caveat for caveat in found.caveats)


def test_corrections_are_looked_at_once(on_a_gpu: Selector, monkeypatch: pytest.MonkeyPatch) -> None:
    asked(on_a_gpu, HERE)
    monkeypatch.setattr(Knowledge, "_between_regimes", lambda *_: pytest.fail("looked again"))
    assert asked(on_a_gpu, HERE, batch=ALONE.problem["batch"] + 1)[1].regime == "compiled"


def test_the_cost_model_of_launched_layers_answers_only_with_the_caveat(trained: Selector) -> None:
    found = trained.choose("lstm", hidden=96, batch=24, regime="compiled")
    assert found.source == "model"
    assert sum("measured compiled with neighbours" in one for one in found.caveats) == 1


@pytest.mark.usefixtures("here")
def test_what_replays_graphs_is_no_candidate_unless_it_is_asked_for() -> None:
    given: dict[str, Any] = {**LAYER, "device": "h200", "regime": "compiled"}
    selector = Selector(shipped=False)
    found = selector.choose("lstm", **given)
    graphs = {name for name in VERSIONS if name.endswith("_graph")}
    assert graphs <= found.exclusions.keys()
    for name in ("fused_graph", "torch_lstm_graph"):
        assert "which no graph of torch.compile holds" in found.exclusions[name]
    assert "fused_graph" not in selector.choose("lstm", **LAYER, device="h200").exclusions
    assert selector.choose("lstm", **given, override="fused_graph").implementation == "fused_graph"


def test_what_computes_wrongly_is_not_chosen_in_another_regime(selector_of: Any) -> None:
    best = compiled(sweep())
    selector = selector_of([*sweep(), *best])
    name = selector.choose("lstm", **LAYER, regime="compiled").implementation
    problem = LSTM.problem(**LAYER)
    wrong = [
        replace(one, status=Status.INCORRECT, reason="its states", measured_at=one.measured_at + LATER)
        for one in sweep()
        if (one.problem, one.implementation) == (problem, name)
    ]
    with selector.database.write() as connection:
        records.add(connection, wrong)
    selector.reload()
    found = selector.choose("lstm", **LAYER, regime="compiled")
    assert found.source == "exact"
    assert "gave wrong results" in found.exclusions[name]


def test_what_failed_when_it_was_compiled_is_not_chosen_by_its_launched_time(selector_of: Any) -> None:
    failed = replace(
        replay.record(LSTM.problem(**LAYER), "hoisted"),
        regime="compiled",
        status=Status.CRASHED,
        reason="a graph break",
        memory=None,
        forward=None,
        forward_backward=None,
    )
    selector = selector_of([*sweep(), failed])
    found = selector.choose("lstm", **LAYER, among=["hoisted", "unfused"], regime="compiled")
    assert "a graph break" in found.exclusions["hoisted"]
    assert found.implementation == "unfused"
    assert any("measured compiled with neighbours" in one for one in found.caveats)
    assert selector.choose("lstm", **LAYER, among=["hoisted", "unfused"]).implementation == "hoisted"


@pytest.mark.parametrize("regime", ["graph", "eager", "", None, 3, ["compiled"], {}])
def test_a_regime_that_nobody_answers_is_refused(both: Selector, regime: object) -> None:
    with pytest.raises(InvalidRequest, match=r"regime=.*: expected one of launched, compiled\."):
        both.choose("lstm", **LAYER, regime=regime)


def test_questions_of_both_regimes_are_remembered_apart_and_answered_together(both: Selector) -> None:
    queries = [
        Query(operator="lstm", hyperparameters=LAYER, regime=one) for one in ("compiled", "launched")
    ] * 2
    found = [one.implementation for one in both.choose_each(queries) if isinstance(one, Choice)]
    alone = [both.answer(query).implementation for query in queries]
    assert found == alone
    assert len(set(found)) == 2


def test_a_choice_survives_its_dictionary_and_older_ones_are_as_they_were(both: Selector) -> None:
    launched, found = both.choose("lstm", **LAYER), both.choose("lstm", **LAYER, regime="compiled")
    assert "regime" not in launched.to_dict()
    for one in (launched, found):
        again = Choice.from_dict(json.loads(one.json))
        assert again == replace(one, torch_device=None)


def test_what_is_asked_of_compiled_layers_is_not_noted_for_measuring_launched_ones(trained: Selector) -> None:
    given = {"hidden": 96, "batch": 24}
    assert is_uncertain(trained.choose("lstm", **given))
    assert not is_uncertain(trained.choose("lstm", **given, regime="compiled"))


def test_import_selector_takes_the_regime_too(both: Selector) -> None:
    found = selector.choose("lstm", **LAYER, regime="compiled", database=both.database)
    assert found.implementation == both.choose("lstm", **LAYER, regime="compiled").implementation


@pytest.mark.parametrize("frozen", [False, True])
def test_compiled_records_do_not_say_from_which_device_times_are_carried_over(
    frozen: bool, sqlite_database: Database
) -> None:
    """Of devices that run other kernels the one goes first of which the most was measured."""
    one, two, asked = (replace(replay.HERE, name=f"Processor {name}") for name in "abc")
    found = sweep()
    little = [replace(record, device=two) for record in found[: len(found) // 2]]
    with sqlite_database.write() as connection:
        records.add(connection, [*(replace(record, device=one) for record in found), *little])
    first, second = Selector(sqlite_database, frozen=frozen).others("lstm", asked)
    with sqlite_database.write() as connection:
        records.add(connection, compiled([replace(record, device=two) for record in found]))
    assert Selector(sqlite_database, frozen=frozen).others("lstm", asked) == [first, second]
    assert [first.name, second.name] == [one.name, two.name]
