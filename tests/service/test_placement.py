"""What schedulers ask: rows with figures or with reasons, and rankings."""

# ruff: noqa: F811 - arguments have the names of the fixtures

from dataclasses import replace

import pytest

from kernel_selector.kernels.contract import UnknownDevice, UnknownHyperparameter
from kernel_selector.service.scheduling.placement import Job, measured_devices, placements, throughputs
from selector import Query
from tests.selector import replay
from tests.selector.conftest import here, selector_of, trained, trained_file  # noqa: F401 - fixtures

SIZES = {"hidden": 64, "seq": 20}


def job(**more):
    return Job(name="translate", query=Query(hyperparameters={**SIZES, **more}))


def test_rows_are_what_the_selector_chooses(trained):
    rows = throughputs(trained, [job()], [replay.HERE.key], [8, 16])
    assert [item.batch for item in rows] == [8, 16]
    for item in rows:
        choice = trained.choose("lstm", device=replay.HERE.key, batch=item.batch, **SIZES)
        assert (item.implementation, item.time_ms) == (choice.implementation, choice.time_ms)
        assert item.items_per_s == pytest.approx(item.batch / choice.time_ms * 1e3)
        assert item.feasible
        assert choice.implementation in item.reason
        assert item.snapshot == choice.snapshot


def test_the_batch_of_the_job_itself(trained):
    (only,) = throughputs(trained, [job(batch=4)], [replay.HERE.key])
    assert only.batch == 4


def test_what_does_not_fit_is_a_row_with_the_reason(trained):
    tight = Job(name="tight", query=Query(hyperparameters={**SIZES, "batch": 8}, memory=1))
    (only,) = throughputs(trained, [tight], [replay.HERE.key])
    assert only.feasible is False
    assert "Nothing fits" in only.reason
    assert only.time_ms is None


def test_the_memory_of_the_device_is_a_limit(trained, monkeypatch):
    small = replace(replay.HERE, memory_bytes=10)
    monkeypatch.setattr("selector.selection.selector.Selector.choose_each", _of_device(small))
    (only,) = throughputs(trained, [job(batch=8)], [replay.HERE.key])
    assert only.feasible is False


def _of_device(device):
    from selector.selection.selector import Selector

    original = Selector.choose_each

    def choose_each(self, queries):
        found = original(self, queries)
        return [item if isinstance(item, Exception) else replace(item, device=device) for item in found]

    return choose_each


def test_wrong_questions_raise(trained):
    with pytest.raises(UnknownDevice):
        throughputs(trained, [job(batch=8)], ["nonesuch"])
    with pytest.raises(UnknownHyperparameter):
        throughputs(trained, [job(batch=8, hiden=1)], [replay.HERE.key])


def test_placements_rank_and_explain(trained):
    query = Query(hyperparameters={**SIZES, "batch": 8})
    ranked = placements(trained, query, ["nvidia-h200", replay.HERE.key])
    assert [item.rank for item in ranked] == [1, 2]
    assert ranked[0].device.key == replay.HERE.key  # the other one is not known
    assert ranked[1].throughput.feasible is None
    tight = placements(trained, replace(query, memory=1), [replay.HERE.key])
    assert [item.rank for item in tight] == [None]


def test_the_measured_devices(trained, selector_of):
    assert measured_devices(trained) == (replay.HERE.key,)
    assert "nvidia-h200" in measured_devices(selector_of())
