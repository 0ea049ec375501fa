"""What a question is prepared with: refusals, failures and measurements."""

from __future__ import annotations

from types import SimpleNamespace

from kernel_selector.kernels import registry
from selector.selection.answer import prepare
from selector.selection.devices import Resolved
from selector.selection.query import Request
from tests.selector import replay

LSTM = registry.operator("lstm")


def test_what_is_both_refused_and_failed_has_the_reason_of_the_refusal():
    problem = LSTM.problem(hidden=8, batch=2)
    _, refused = registry.candidates(problem, replay.HERE)
    name, reason = next(iter(refused.items()))
    failures = {name: "failed", "hoisted": "failed"}, {}
    evidence = SimpleNamespace(
        most_frequent_winner=None,
        failures=lambda *_: failures,
        measured=lambda *_: (),
        problems={problem.key: problem},
        least_noise=lambda _, **__: 0.0,
    )
    request = Request(problem, Resolved(replay.HERE, None), replay.HERE, None, "time", None, False, ())
    knowledge = SimpleNamespace(measurements=lambda *_: evidence, evidence=lambda *_: evidence)
    question = prepare(knowledge, request).question
    assert (question.excluded[name], question.excluded["hoisted"]) == (reason, "failed")
    assert "hoisted" not in question.names
