"""What is answered together, on columns, is what every single question is answered."""

from __future__ import annotations

import pickle
import random
import re

import numpy as np
import pytest

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Problem
from kernel_selector.kernels.devices import known_device
from selector import NothingFits, Query
from selector.considering import Considered, considered, considered_each
from selector.deciding import decided_by_time
from selector.evidence import Evidence, Tier
from selector.policy import Question, combine, decide
from selector.predicted import Predicted, Predictions
from selector.preparing import question_of
from selector.problem_sets import random_problems
from selector.quiet import Quiet
from selector.reading import MANY, Reading
from selector.request import Request
from selector.table import Table
from tests.selector import replay

LSTM = registry.operator("lstm")
NAMES = ("base", "fast", "new", "other", "worst")


def drawn(count: int, seed: int) -> list[dict[str, int]]:
    draw = random.Random(seed)
    return [
        {"hidden": draw.randint(8, 700), "batch": draw.randint(1, 150), "seq": draw.randint(5, 200)}
        for _ in range(count)
    ]


@pytest.mark.parametrize("more", [{}, {"objective": "memory"}, {"memory": "64 MiB"}, {"override": "hoisted"}])
def test_a_large_batch_answers_as_single_questions_do(trained, more):
    asked = [Query(hyperparameters=given, **more) for given in drawn(4 * MANY, 3)]
    measured = list(trained.evidence("lstm", replay.HERE.key).problems.values())[:9]
    asked += [Query(hyperparameters=dict(problem.as_dict), **more) for problem in measured]
    asked += [Query(hyperparameters={**one.as_dict, "seq": one.seq + 1}, **more) for one in measured]
    for query, found in zip(asked, trained.choose_each(asked), strict=True):
        if isinstance(found, NothingFits):
            with pytest.raises(NothingFits, match=re.escape(str(found))):
                trained.choose(**query.hyperparameters, **more)
            continue
        alone = trained.choose(**query.hyperparameters, **more)
        assert repr(found) == repr(alone)
        assert found == alone
        assert found.summary() == alone.summary()
        assert found.candidates.lowest_ms() == alone.candidates.lowest_ms()
        assert pickle.loads(pickle.dumps(found)) == alone


def test_what_the_model_has_not_seen_is_decided_once_for_all(trained, monkeypatch):
    decided = []
    monkeypatch.setattr("selector.answer.decide", lambda *given: decided.append(given) or decide(*given))
    asked = [Query(hyperparameters={"hidden": 5000 + step, "batch": 8}) for step in range(2 * MANY)]
    answers = trained.choose_each(asked)
    assert len(decided) == 1
    for query, found in zip(asked, answers, strict=True):
        alone = trained.choose(**query.hyperparameters)
        assert (found.source, repr(found)) == ("default", repr(alone))
        assert any(f"hidden={query.hyperparameters['hidden']}" in caveat for caveat in found.caveats)
        assert pickle.loads(pickle.dumps(found)) == alone


def test_what_is_quiet_has_neither_failures_nor_figures(trained):
    evidence = trained.evidence("lstm", replay.HERE.key)
    stored = list(evidence.problems.values())
    draw, problems = random.Random(4), []
    for problem in draw.sample(stored, min(200, len(stored))):
        factor = 2 ** draw.uniform(-0.6, 0.6)
        given = {**problem.as_dict, "hidden": max(int(problem.hidden * factor), 1)}
        problems += [problem, LSTM.problem(given), LSTM.problem({**given, "projection": 3, "hidden": 100})]
    readings = [Reading.of(problem) for problem in problems]
    flags = Quiet("lstm", evidence).of_each(Table(readings), replay.HERE)
    for problem, is_quiet in zip(problems, flags, strict=True):
        said = list(evidence.tiers(problem, replay.HERE, None)) or any(
            evidence.failures(problem, replay.HERE, LSTM.default)
        )
        assert is_quiet == (not said)
    assert 50 < sum(flags) < len(flags) - 50


def test_a_failure_near_by_is_not_quiet(trained):
    records = [one for one in replay.recorded() if one.reason]
    assert records
    evidence = Evidence(records, trained.evidence("lstm", replay.HERE.key).versions)
    readings = [Reading.of(record.problem) for record in records]
    readings += [Reading.of(LSTM.problem({**one.as_dict, "seq": one.seq + 1})) for one in readings]
    flags = Quiet("lstm", evidence).of_each(Table(readings), records[0].device)
    for reading, is_quiet in zip(readings, flags, strict=True):
        said = any(evidence.failures(reading, records[0].device, LSTM.default))
        assert not (said and is_quiet)


def test_nothing_known_is_quiet():
    readings = [Reading.of(problem) for problem in random_problems("lstm", "cuda", count=20, seed=1)]
    assert all(Quiet("lstm", Evidence((), {})).of_each(Table(readings), replay.HERE))


def test_the_rule_on_columns_is_the_rule():
    draw = np.random.default_rng(5)
    names = [tuple(sorted({"base", *draw.choice(NAMES, draw.integers(0, 5))})) for _ in range(400)]
    of_each = np.repeat(np.arange(len(names)), [len(each) for each in names])
    figures = np.abs(draw.normal(size=(len(of_each), 9)))
    figures[:, 0] = draw.choice([1.0, 1.005, 1.01, 1.02, 1.3, 2.0], len(of_each))  # many are equal
    figures[:, 6] = draw.choice([0.0, 0.01, 0.02, 0.3], len(of_each))
    together = predictions(names, of_each, figures)
    defaults = [start + each.index("base") for start, each in zip(together.bounds, names, strict=False)]
    decided = decided_by_time(together, defaults)
    for place, each in enumerate(names):
        tier = Tier(source="model", estimates=Predicted(together, place))
        question = Question(default="base", names=each, excluded={}, counted_bytes={})
        alone = decide(question, combine([tier], each, "base"))
        start = together.bounds[place]
        assert each[decided.chosen[place] - start] == alone.implementation
        other = decided.runner_up[place]
        assert (None if other < 0 else each[other - start]) == alone.runner_up
        assert other < 0 or decided.margin[place] == alone.margin
    assert len({name for each in names for name in each}) == len(NAMES)


def predictions(names, of_each, figures):
    """Of figures [rows, 9] as an Estimate has them."""
    times, sizes = figures[:, [0, 1, 2, 6]], figures[:, [3, 4, 5, 7, 8]]
    return Predictions(names, of_each, times, sizes.__getitem__)


@pytest.mark.parametrize("time", [0.0, np.inf, np.nan])
def test_times_that_have_no_ratio_are_not_decided_together(time):
    figures = np.ones((2, 9))
    figures[1, 0] = time
    assert decided_by_time(predictions([("a", "b")], np.array([0, 0]), figures), [0]) is None


@pytest.mark.parametrize("operator", ["lstm", "linear"])
def test_refusals_are_those_of_each_problem(operator):
    device = known_device("h200")
    problems: list[Problem] = random_problems(operator, "cuda", count=8 * MANY, seed=2)
    readings = [Reading.of(problem) for problem in problems]
    for found, reading in zip(considered_each(Table(readings), device), readings, strict=True):
        alone = considered(reading, device)
        assert found.accepted == alone.accepted
        assert dict(found.refused) == alone.refused
        with pytest.raises(KeyError):
            found.refused["no such"]


def test_what_is_both_refused_and_failed_has_the_reason_of_the_refusal():
    problem = random_problems("lstm", "cuda", count=1, seed=1)[0]
    request = Request(problem, None, None, "time", None, operator_assumed=False)
    refused = Considered(("a",), {"b": "refused", "c": "refused"})
    both = question_of(request, Reading.of(problem), refused, {"a": "failed", "b": "failed"}, {}).excluded
    assert dict(both) == {"a": "failed", "b": "refused", "c": "refused"}
    assert len(both) == 3
