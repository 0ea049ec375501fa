"""Questions with good arguments: what is chosen, on what evidence, and what the answer says."""

import json
from dataclasses import replace

import pytest
import torch

from kernel_selector.db import Database, records
from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Status
from selector import NothingFits, Selector, choose
from selector.selection import answer, devices
from selector.selection.query import Query
from tests.selector import replay

LSTM = registry.operator("lstm")
PROBLEM = LSTM.problem(hidden=64, batch=8)
NAMES = replay.ON_CPU
OTHERS = [name for name in NAMES if name != LSTM.default]


def measured(times, problem=PROBLEM, **more):
    return [replay.record(problem, name, time_ms=time, **more) for name, time in times.items()]


def test_exact_record_decides(selector_of):
    choice = selector_of(measured({LSTM.default: 2.0, OTHERS[0]: 1.0})).choose(hidden=64, batch=8)
    assert (choice.implementation, choice.source) == (OTHERS[0], "exact")
    assert choice.time_ms == 1.0
    assert choice.runner_up == LSTM.default
    assert choice.margin == pytest.approx(1.0)


def test_default_stays_within_the_noise(selector_of):
    choice = selector_of(measured({LSTM.default: 1.0, OTHERS[0]: 0.995})).choose(hidden=64, batch=8)
    assert choice.implementation == LSTM.default
    assert choice.margin < 0
    assert "within the noise" in " ".join(choice.explain().split())


def test_noisy_records_need_a_larger_margin(selector_of):
    times = {LSTM.default: 1.0, OTHERS[0]: 0.9}
    assert selector_of(measured(times, spread=0.2)).choose(hidden=64, batch=8).implementation == LSTM.default


def test_more_samples_make_less_noise(selector_of):
    found = measured({LSTM.default: 1.0, OTHERS[0]: 0.9}, spread=0.2)
    often = [replace(item, forward_backward=replace(item.total, samples=400)) for item in found]
    choice = selector_of(often).choose(hidden=64, batch=8)
    assert choice.implementation == OTHERS[0]


def test_margin_counts_only_for_the_default(selector_of):
    times = {LSTM.default: 2.0, OTHERS[0]: 1.001, OTHERS[1]: 1.0}
    assert selector_of(measured(times)).choose(hidden=64, batch=8).implementation == OTHERS[1]


def test_other_environment_is_second_best(selector_of):
    older = replace(replay.SOFTWARE, torch="2.0.0")
    old = measured({LSTM.default: 2.0, OTHERS[0]: 1.0}, environment=older)
    choice = selector_of(old).choose(hidden=64, batch=8)
    assert (choice.implementation, choice.source) == (OTHERS[0], "exact")
    assert any("torch 2.0.0 instead of 2.13.0" in caveat for caveat in choice.caveats)


def test_own_environment_outweighs_another(selector_of):
    older = replace(replay.SOFTWARE, torch="2.0.0")
    old = measured({LSTM.default: 2.0, OTHERS[0]: 1.0}, environment=older)
    new = measured({LSTM.default: 1.0, OTHERS[0]: 2.0})
    choice = selector_of(old + new).choose(hidden=64, batch=8)
    assert choice.implementation == LSTM.default
    assert not choice.caveats


def test_other_host_is_named(selector_of):
    others = {"on host A instead of Replay CPU 8": {"host": "A"}, "on another Replay": {"memory_bytes": 1}}
    for words, other in others.items():
        found = measured({LSTM.default: 2.0, OTHERS[0]: 1.0}, device=replace(replay.HERE, **other))
        choice = selector_of(found).choose(hidden=64, batch=8)
        assert choice.implementation == OTHERS[0]
        assert any(words in caveat for caveat in choice.caveats)


def test_earlier_version_is_the_last_of_the_measured(selector_of):
    old = [
        replace(item, implementation_version="old") for item in measured({LSTM.default: 2.0, OTHERS[0]: 1.0})
    ]
    choice = selector_of(old).choose(hidden=64, batch=8)
    assert any("earlier version" in caveat for caveat in choice.caveats)


def test_near_neighbour_is_scaled_by_the_work(selector_of):
    choice = selector_of(measured({LSTM.default: 2.0, OTHERS[0]: 1.0})).choose(hidden=64, batch=9)
    assert (choice.implementation, choice.source) == (OTHERS[0], "near")
    assert 1.0 < choice.time_ms < 9 / 8
    assert choice.time_interval_ms[0] < choice.time_ms < choice.time_interval_ms[1]
    assert any("batch=8 instead of 9" in caveat for caveat in choice.caveats)


FAR = [{"batch": 16}, {"layers": 2}, {"mode": "inference"}, {"projection": 32}, {"dtype": "bfloat16"}]


@pytest.mark.parametrize("other", FAR)
def test_far_and_different_problems_are_no_neighbours(selector_of, other):
    choice = selector_of(measured({LSTM.default: 2.0, OTHERS[0]: 1.0})).choose(
        **{"hidden": 64, "batch": 8, **other}
    )
    assert (choice.implementation, choice.source) == (LSTM.default, "default")
    assert choice.caveats


def test_a_choice_is_printed_in_one_line(selector_of):
    known = selector_of(measured({LSTM.default: 2.0, OTHERS[0]: 1.0}))
    line = str(known.choose(hidden=64, batch=8))
    assert line.startswith(f"lstm.{OTHERS[0]} on ")
    assert ": 1 ms (" in line
    assert line.endswith(" (exact)")
    assert "\n" not in line
    assert str(known.choose(hidden=4096, batch=8)).endswith(" (default)")


@pytest.mark.parametrize("word", [{"packed": True}, {"batch_first": True}, {"dropout": 0.2}, {"bias": False}])
def test_what_was_measured_stands_for_another_word(selector_of, word):
    """Wider than a neighbour of the same words, and with the word that differs in a caveat."""
    known = selector_of(measured({LSTM.default: 2.0, OTHERS[0]: 1.0}))
    exact, choice = known.choose(hidden=64, batch=8), known.choose(hidden=64, batch=8, **word)
    assert (choice.implementation, choice.source) == (OTHERS[0], "near")
    assert choice.time_ms <= exact.time_ms
    assert choice.time_interval_ms[1] > choice.time_ms * 1.1
    (name,) = word
    assert any(f"{name}=" in caveat and f"instead of {word[name]}" in caveat for caveat in choice.caveats)


def test_another_word_stands_for_a_default_as_well(selector_of):
    """A default is implied, and so no part of a problem's own values: it is another word all the same."""
    problem = LSTM.problem(hidden=64, batch=8, batch_first=True)
    found = [replay.record(problem, name, time_ms=ms) for name, ms in ((LSTM.default, 2.0), (OTHERS[0], 1.0))]
    choice = selector_of(found).choose(hidden=64, batch=8)
    assert (choice.implementation, choice.source) == (OTHERS[0], "near")
    assert choice.time_interval_ms[1] > choice.time_ms * 1.1
    assert any("batch_first=True instead of False" in caveat for caveat in choice.caveats)


def test_candidates_that_were_not_measured_are_shown(selector_of):
    choice = selector_of(measured({LSTM.default: 2.0, OTHERS[0]: 1.0})).choose(hidden=64, batch=8)
    assert {candidate.name for candidate in choice.candidates} == set(registry.implementations("lstm"))
    assert {candidate.name for candidate in choice.candidates if not candidate.excluded} == set(NAMES)
    assert choice.candidates[0].name == choice.implementation


@pytest.mark.parametrize("status", [Status.INCORRECT, Status.CRASHED, Status.TIMEOUT, Status.OUT_OF_MEMORY])
def test_failed_candidates_are_excluded_at_and_near_the_problem(selector_of, status):
    found = [*measured({LSTM.default: 2.0, OTHERS[1]: 1.5}), replay.failed(PROBLEM, OTHERS[0], status)]
    selector = selector_of(found)
    for batch in (8, 9):
        choice = selector.choose(hidden=64, batch=batch)
        excluded = {item.name: item.excluded for item in choice.candidates if item.excluded}
        assert "it broke" in excluded[OTHERS[0]]
        assert choice.implementation == OTHERS[1]
    far = selector.choose(hidden=64, batch=64)
    excluded = {item.name for item in far.candidates if item.excluded} & set(NAMES)
    assert excluded == ({OTHERS[0]} if status is Status.OUT_OF_MEMORY else set())


def test_a_good_record_outweighs_a_failure_nearby(selector_of):
    near = LSTM.problem(hidden=64, batch=9)
    found = [*measured({LSTM.default: 2.0, OTHERS[0]: 1.0}), replay.failed(near, OTHERS[0], Status.CRASHED)]
    assert selector_of(found).choose(hidden=64, batch=8).implementation == OTHERS[0]


@pytest.mark.parametrize("version", ["", "older"])
def test_what_is_good_at_a_larger_problem_has_memory_for_less(selector_of, version):
    large = measured({OTHERS[0]: 9.0}, problem=LSTM.problem(hidden=64, batch=512))
    if version:
        large = [replace(one, implementation_version=version) for one in large]
    failed = replay.failed(PROBLEM, OTHERS[0], Status.OUT_OF_MEMORY)
    selector = selector_of([*measured({LSTM.default: 2.0, OTHERS[1]: 1.5}), failed, *large])
    excluded = {
        batch: {one.name for one in selector.choose(hidden=64, batch=batch).candidates if one.excluded}
        for batch in (8, 9, 64)
    }
    assert OTHERS[0] in excluded[8]  # where it was measured
    assert [OTHERS[0] in excluded[batch] for batch in (9, 64)] == [bool(version)] * 2


def test_failed_default_is_excluded_at_the_problem(selector_of):
    found = [*measured({OTHERS[0]: 1.0}), replay.failed(PROBLEM, LSTM.default, Status.OUT_OF_MEMORY)]
    assert selector_of(found).choose(hidden=64, batch=8).implementation == OTHERS[0]


def test_a_default_that_gave_wrong_results_is_not_chosen_at_and_near_the_problem(selector_of):
    found = [*measured({OTHERS[0]: 1.0}), replay.failed(PROBLEM, LSTM.default, Status.INCORRECT)]
    selector = selector_of(found)
    queries = [
        Query(operator="lstm", hyperparameters={"hidden": 64, "batch": batch}) for batch in (8, 9)
    ] * 20
    alone = [selector.choose(hidden=64, batch=batch) for batch in (8, 9)]
    for choice in (*alone, *selector.choose_each(queries)):
        assert choice.implementation == OTHERS[0]
        words = f"{LSTM.default}, the framework's default, is not chosen: it gave wrong results"
        assert any(caveat.startswith(words) for caveat in choice.caveats)


def test_where_nothing_is_known_of_others_a_wrong_default_stays_with_a_warning(selector_of):
    selector = selector_of([replay.failed(PROBLEM, LSTM.default, Status.INCORRECT)])
    queries = [Query(operator="lstm", hyperparameters={"hidden": 64, "batch": batch}) for batch in (8, 9)]
    for choice in selector.choose_each(queries * 20):
        assert (choice.implementation, choice.source) == (LSTM.default, "default")
        assert any("gave wrong results" in caveat for caveat in choice.caveats)


def test_without_a_correct_candidate_the_default_stays_with_a_warning(selector_of):
    selector = selector_of([replay.failed(PROBLEM, name, Status.INCORRECT) for name in NAMES])
    queries = [
        Query(operator="lstm", hyperparameters={"hidden": 64, "batch": batch}) for batch in (8, 9)
    ] * 20
    for choice in (selector.choose(hidden=64, batch=9), *selector.choose_each(queries)):
        assert (choice.implementation, choice.source) == (LSTM.default, "default")
        assert any("gave wrong results" in caveat for caveat in choice.caveats)


def test_a_default_that_crashed_nearby_is_chosen_with_doubts(selector_of):
    near = LSTM.problem(hidden=64, batch=9)
    choice = selector_of([replay.failed(near, LSTM.default, Status.CRASHED)]).choose(hidden=64, batch=8)
    assert choice.implementation == LSTM.default
    assert any("crashed on" in caveat for caveat in choice.caveats)


def test_memory_limit_excludes_with_a_reason(selector_of):
    found = [
        replay.record(PROBLEM, LSTM.default, time_ms=2.0, memory_bytes=2**20),
        replay.record(PROBLEM, OTHERS[0], time_ms=1.0, memory_bytes=2**22),
    ]
    selector = selector_of(found)
    assert selector.choose(hidden=64, batch=8, memory="4MiB").implementation == OTHERS[0]
    choice = selector.choose(hidden=64, batch=8, memory="3MiB")
    assert choice.implementation == LSTM.default
    reason = next(item.excluded for item in choice.candidates if item.name == OTHERS[0])
    assert "4 MiB" in reason
    assert "3 MiB" in reason


def test_nothing_fits_names_the_least_need(selector_of):
    selector = selector_of(
        replay.record(PROBLEM, name, memory_bytes=2**22 + index) for index, name in enumerate(NAMES)
    )
    with pytest.raises(NothingFits, match=rf"memory=1024 bytes .* least is {2**22} bytes.*{NAMES[0]}"):
        selector.choose(hidden=64, batch=8, memory=1024)


def test_objective_memory_takes_the_smallest_and_then_the_fastest(selector_of):
    found = [
        replay.record(PROBLEM, LSTM.default, time_ms=1.0, memory_bytes=3000),
        replay.record(PROBLEM, OTHERS[0], time_ms=3.0, memory_bytes=2000),
        replay.record(PROBLEM, OTHERS[1], time_ms=2.0, memory_bytes=2000),
    ]
    choice = selector_of(found).choose(hidden=64, batch=8, objective="memory")
    assert (choice.implementation, choice.runner_up) == (OTHERS[1], OTHERS[0])


def test_override_wins_and_keeps_its_figures(selector_of, monkeypatch):
    selector = selector_of(measured({LSTM.default: 1.0, OTHERS[0]: 2.0}))
    choice = selector.choose(hidden=64, batch=8, override=OTHERS[0])
    assert (choice.implementation, choice.source, choice.time_ms) == (OTHERS[0], "override", 2.0)
    monkeypatch.setenv("SELECTOR_OVERRIDE_LSTM", OTHERS[1])
    assert selector.choose(hidden=64, batch=8).implementation == OTHERS[1]
    assert selector.choose(hidden=64, batch=8, override=OTHERS[0]).implementation == OTHERS[0]


def test_records_of_what_is_gone_are_passed_over_and_an_override_says_what_took_its_place(selector_of):
    problem = registry.operator("linear").problem(rows=8, in_features=64)
    found = measured({"torch_linear": 2.0, "column_major": 1.0}, problem, memory_bytes=1)
    old = replace(
        replay.record(problem, "padded", time_ms=0.1, memory_bytes=1),
        implementation="pre_transposed",
        implementation_version="0" * 12,
    )
    selector = selector_of([*found, old])
    asked = {"rows": 8, "in_features": 64}
    choice = selector.choose("linear", **asked)
    assert choice.implementation == "column_major"
    assert "pre_transposed" not in str(choice.to_dict())
    named = selector.choose("linear", override="pre_transposed", **asked)
    assert (named.implementation, named.source) == ("torch_linear", "override")
    assert any("pre_transposed of linear was taken out" in one for one in named.caveats)


def test_override_of_a_failed_candidate_warns(selector_of):
    found = [*measured({LSTM.default: 2.0}), replay.failed(PROBLEM, OTHERS[0], Status.INCORRECT)]
    choice = selector_of(found).choose(hidden=64, batch=8, override=OTHERS[0])
    assert choice.implementation == OTHERS[0]
    assert any("wrong results" in caveat for caveat in choice.caveats)


@pytest.mark.usefixtures("here")
def test_without_a_database_the_default_is_chosen_and_says_so():
    choice = choose(hidden=64, batch=8)
    assert (choice.implementation, choice.source) == (LSTM.default, "default")
    assert choice.operator_assumed
    assert choice.time_ms is None
    assert any("selector quickstart" in caveat for caveat in choice.caveats)
    assert "operator=lstm" in choice.explain()


def test_changes_are_seen_unless_frozen(selector_of, sqlite_database, monkeypatch):
    monkeypatch.setattr("selector.selection.selector.CHECK_S", 0.0)
    live, frozen = selector_of(), selector_of(frozen=True)
    before = live.snapshot
    assert live.choose(hidden=64, batch=8).source == "default"
    with sqlite_database.write() as connection:
        records.add(connection, records=measured({LSTM.default: 2.0, OTHERS[0]: 1.0}))
    assert live.choose(hidden=64, batch=8).implementation == OTHERS[0]
    assert live.snapshot != before
    assert frozen.choose(hidden=64, batch=8).source == "default"
    assert frozen.snapshot == before
    frozen.reload()
    assert frozen.choose(hidden=64, batch=8).implementation == OTHERS[0]


@pytest.mark.usefixtures("here")
def test_a_database_that_appears_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr("selector.selection.selector.CHECK_S", 0.0)
    path = tmp_path / "late.sqlite"
    monkeypatch.setenv("SELECTOR_DATABASE_URL", str(path))
    selector = Selector()
    assert selector.choose(hidden=64, batch=8).source == "default"
    with Database.open(path, create=True) as database, database.write() as connection:
        records.add(connection, records=measured({LSTM.default: 2.0, OTHERS[0]: 1.0}))
    assert selector.choose(hidden=64, batch=8).implementation == OTHERS[0]
    selector.close()


def test_equal_questions_give_the_same_answer_object(selector_of):
    selector = selector_of(measured({LSTM.default: 2.0, OTHERS[0]: 1.0}))
    assert selector.choose(hidden=64, batch=8) is selector.choose(hidden=64, batch=8)
    assert selector.choose("lstm", hidden_size=64, batch=8).problem == PROBLEM


@pytest.mark.parametrize("mode", ["training", "inference"])
@pytest.mark.parametrize("dtype", ["float32", torch.float64])
def test_build_gives_the_module_in_dtype_and_mode(selector_of, mode, dtype):
    choice = selector_of().choose(hidden=8, batch=2, mode=mode, dtype=dtype)
    module = choice.build()
    assert module.training == (mode == "training")
    assert {parameter.dtype for parameter in module.parameters()} == {getattr(torch, choice.problem["dtype"])}
    output, _ = module(
        torch.randn(choice.problem["seq"], 2, 8, dtype=getattr(torch, choice.problem["dtype"]))
    )
    assert output.shape == (50, 2, 8)


def test_to_dict_is_json_and_complete(selector_of):
    choice = selector_of(measured({LSTM.default: 2.0, OTHERS[0]: 1.0})).choose(
        hidden=64, batch=8, memory="1GiB"
    )
    data = json.loads(json.dumps(choice.to_dict(), allow_nan=False))
    assert data["implementation"] == OTHERS[0]
    assert data["problem"]["hidden"] == 64
    assert data["memory_limit_bytes"] == 2**30
    assert len(data["candidates"]) == len(registry.implementations("lstm"))


def test_explain_tells_the_whole_story(selector_of):
    text = selector_of(measured({LSTM.default: 2.0, OTHERS[0]: 1.0})).choose(hidden=64, batch=8).explain()
    for words in ("hidden=64 batch=8", "seq=50", "Replay CPU 8", "measured", "100.0% slower", *NAMES):
        assert words in text


def test_explain_fits_a_terminal(selector_of):
    reason = "output[0]: error 0.24 RMS and 1.5 at most, allowed 0.01 and 0.2, of the tensor's RMS " * 3
    found = [
        *measured({LSTM.default: 1.0, OTHERS[0]: 0.99}),
        replay.failed(PROBLEM, OTHERS[1], Status.CRASHED),
    ]
    found.append(replay.failed(PROBLEM, OTHERS[2], Status.INCORRECT, reason.strip()))
    text = selector_of(found).choose(hidden=64, batch=8, mode="training", bidirectional=False).explain()
    assert [line for line in text.splitlines() if len(line) > 80] == []
    assert reason.strip() in " ".join(text.split())


def test_evidence_is_compared_with_the_software_of_the_device_asked_about(selector_of, monkeypatch):
    asked = []
    monkeypatch.setattr(answer, "current_environment", lambda name: asked.append(name) or replay.SOFTWARE)
    monkeypatch.setattr(devices, "default_torch_device", lambda: "cuda:0")  # a GPU does not matter to a CPU
    selector_of(measured({LSTM.default: 2.0})).choose(hidden=64, batch=8, device="cpu")
    assert asked == ["cpu"]


def test_status_operators_and_devices(selector_of):
    selector = selector_of(measured({LSTM.default: 2.0}))
    assert selector.status()["records"] == 1
    (lstm,) = (one for one in selector.operators() if one["name"] == "lstm")
    assert {item["name"] for item in lstm["implementations"]} >= set(NAMES[:1])
    json.dumps(selector.status())


def test_frozen_selectors_rest_on_one_snapshot(selector_of, sqlite_database):
    frozen = selector_of(frozen=True)
    with sqlite_database.write() as connection:
        records.add(connection, records=measured({LSTM.default: 2.0, OTHERS[0]: 1.0}))
    # asked about for the first time only now, after the database has changed
    assert frozen.choose(hidden=64, batch=8).source == "default"
