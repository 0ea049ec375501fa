"""What schedulers ask: rows with figures or with reasons, and rankings."""

# ruff: noqa: F811 - arguments have the names of the fixtures

import re
from dataclasses import replace

import pytest

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import UnknownDevice, UnknownHyperparameter
from kernel_selector.service.scheduling.kubernetes import judge
from kernel_selector.service.scheduling.least_memory import least_bytes, may_fit, parameter_bytes
from kernel_selector.service.scheduling.placement import Job, measured_devices, placements, throughputs
from selector import Query
from selector.text.units import format_bytes
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


@pytest.mark.parametrize("name", registry.operators())
def test_parameters_are_counted_as_they_are_made(name):
    operator = registry.operator(name)
    for example in operator.examples:
        problem = operator.problem(example)
        made = operator.make_inputs(problem, "cpu", 0).state_dict.values()
        assert parameter_bytes(problem) == sum(tensor.numel() * tensor.element_size() for tensor in made)
        names = list(registry.implementations(name))
        least = least_bytes(problem, names)
        assert may_fit(problem, names, least)
        assert not may_fit(problem, names, least - 1)


def test_the_least_memory_is_parameters_with_gradients_or_what_is_kept():
    problem = registry.operator("lstm").problem(hidden=512, batch=4, seq=3)
    parameters = 4 * 512 * (512 + 512 + 2) * 4
    assert parameter_bytes(problem) == parameters
    assert least_bytes(problem, ["torch_lstm"]) == 2 * parameters  # gradients outweigh what is kept
    long = registry.operator("lstm").problem(hidden=64, batch=64, seq=512)
    kept = registry.implementation("lstm", "torch_lstm").work(long).saved_bytes
    assert least_bytes(long, ["torch_lstm"]) == parameter_bytes(long) + kept
    assert least_bytes(registry.operator("lstm").problem(hidden=64, batch=64, mode="inference"), ["x"]) == (
        4 * 64 * (64 + 64 + 2) * 4
    )


H200 = "NVIDIA-H200"  # of which nothing was measured here: 150 GB


@pytest.mark.parametrize(
    ("sizes", "fits"),
    [
        ({"hidden": 60000, "batch": 1, "seq": 1}, False),  # weights of 115 GB, and their gradients
        ({"hidden": 60000, "batch": 1, "seq": 1, "mode": "inference"}, True),
        ({"hidden": 20000, "batch": 1, "seq": 1, "layers": 64, "mode": "inference"}, False),
        ({"hidden": 1024, "batch": 2**20, "seq": 1000}, False),  # kept for backward
        ({"hidden": 1024, "batch": 64}, True),
    ],
)
@pytest.mark.parametrize("memory", [None, "100 TiB"])
def test_what_cannot_fit_is_refused_without_a_limit_and_without_measurements(trained, sizes, fits, memory):
    verdict = judge(trained, Query(operator="lstm", hyperparameters=sizes, memory=memory), [H200])[H200]
    assert (verdict.refusal is None) is fits
    assert (verdict.score > 0) is fits
    if not fits:
        assert "for parameters, and NVIDIA H200 has 141 GiB" in verdict.refusal


def test_what_was_measured_must_fit_beside_the_parameters(trained, monkeypatch):
    """The record's bytes are beyond the parameters."""
    query = Query(hyperparameters={**SIZES, "batch": 8})
    choice = trained.choose("lstm", device=replay.HERE.key, batch=8, **SIZES)
    needed = choice.memory_interval_bytes[1] + parameter_bytes(choice.problem)
    for memory, fits in ((needed, True), (needed - 1, False)):
        small = replace(replay.HERE, memory_bytes=memory)
        with monkeypatch.context() as patch:
            patch.setattr("selector.selection.selector.Selector.choose_each", _of_device(small))
            (row,) = throughputs(trained, [Job(name="j", query=query)], [replay.HERE.key])
        same = row.feasible is True and row.implementation == choice.implementation
        assert same is fits


@pytest.mark.parametrize("memory", [None, "100 TiB"])
def test_who_has_no_limit_is_told_of_the_device_and_of_no_limit_to_raise(trained, monkeypatch, memory):
    """Room for what is counted at least, and not for what was measured."""
    problem = trained.choose("lstm", device=replay.HERE.key, batch=8, **SIZES).problem
    least = least_bytes(problem, list(registry.implementations("lstm")))
    small = replace(replay.HERE, memory_bytes=least)
    monkeypatch.setattr("selector.selection.selector.Selector.choose_each", _of_device(small))
    query = Query(hyperparameters={**SIZES, "batch": 8}, memory=memory)
    refusal = judge(trained, query, [replay.HERE.name])[replay.HERE.name].refusal
    assert re.match(rf"{replay.HERE.key}: The least is \d+ bytes \([^()]+\) of \w+, ", refusal)
    assert f"beside {format_bytes(parameter_bytes(problem))} of parameters" in refusal
    assert f"{replay.HERE.name} has {format_bytes(least)}. Ask for a smaller batch" in refusal
    assert "limit" not in refusal
    assert "memory=" not in refusal


def test_who_has_a_limit_can_raise_it(trained):
    query = Query(hyperparameters={**SIZES, "batch": 8}, memory="1 KiB")
    refusal = judge(trained, query, [replay.HERE.name])[replay.HERE.name].refusal
    assert "Nothing fits into memory=1024 bytes" in refusal
    assert "Raise the limit" in refusal


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
