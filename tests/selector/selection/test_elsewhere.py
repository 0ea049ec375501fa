"""What was measured on another machine decides where it is clear enough to cover the difference."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest

from selector import Selector
from selector.selection.evidence import OTHER_MACHINE, Evidence
from selector.selection.query import Query
from tests.selector import replay

ELSEWHERE = replace(replay.HERE, memory_bytes=64 * 2**30)  # the same processor with more memory
PROBLEM = replay.registry.operator("lstm").problem(hidden=64, batch=8)


def measured(gain, device):
    times = {"torch_lstm": 1 + gain, "hoisted": 1.0}
    return [replay.record(PROBLEM, name, time_ms=time, device=device) for name, time in times.items()]


@pytest.mark.parametrize(
    ("gain", "device", "chosen"),
    [
        (0.9 * OTHER_MACHINE, replay.HERE, "hoisted"),
        (0.9 * OTHER_MACHINE, ELSEWHERE, "torch_lstm"),
        (1.1 * OTHER_MACHINE, ELSEWHERE, "hoisted"),
    ],
)
def test_a_switch_by_measurements_of_another_machine_needs_a_margin(selector_of, gain, device, chosen):
    choice = selector_of(measured(gain, device)).choose(hidden=64, batch=8)
    assert (choice.implementation, choice.source) == (chosen, "exact")
    if chosen == "torch_lstm":
        assert "within the noise of 15.0%" in " ".join(choice.explain().split())


def test_a_cost_model_of_other_machines_needs_it_too(trained, trained_file, monkeypatch):
    """Alone and in a batch; the figures are the same."""
    sizes = range(130, 130 + 32)
    asked = [Query(hyperparameters={"hidden": size, "batch": 16, "seq": 60}) for size in sizes]
    before = trained.choose_each(asked)
    monkeypatch.setattr(Evidence, "least_noise", lambda *_, **__: 1e9)
    with closing(Selector(trained_file)) as fresh:  # which has answered nothing yet
        after = [*fresh.choose_each(asked[:1]), *fresh.choose_each(asked)]
    assert {one.source for one in (*before, *after)} == {"model"}
    assert any(one.implementation != "torch_lstm" for one in before)
    assert all(one.implementation == "torch_lstm" for one in after)
    pairs = zip(before, after[1:], strict=True)
    same = [(one, other) for one, other in pairs if one.implementation == "torch_lstm"]
    assert all(one.time_ms == other.time_ms for one, other in same)


@pytest.mark.parametrize(
    ("here", "devices", "noise"),
    [
        (replay.HERE, [replay.HERE, ELSEWHERE], 0.0),
        (replay.HERE, [ELSEWHERE], OTHER_MACHINE),
        (replace(replay.HERE, host=""), [ELSEWHERE], 0.0),
        (replay.HERE, [], 0.0),
    ],
)
def test_least_noise_of_evidence(here, devices, noise):
    versions = {name: one.version for name, one in replay.registry.implementations("lstm").items()}
    records = [one for device in devices for one in measured(0.1, device)]
    assert Evidence(records, versions).least_noise(here) == noise
