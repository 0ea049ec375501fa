"""What a sweep measures, and what may be asked for."""

from __future__ import annotations

import pytest

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import UnknownOperator
from kernel_selector.kernels.measure.jobs import read_jobs, write_jobs
from kernel_selector.service.cli.profile_request import ProfileRequest
from selector.errors import InvalidRequest
from selector.profiling.sweep import COMPILED, COMPILED_EVERY, named_operators, sweep_jobs
from selector.workloads.published_layers import published_problems
from tests.selector import replay


def test_every_operator_has_layers_of_published_models_in_the_dtypes_that_matter() -> None:
    for operator in registry.operators():
        found = published_problems(operator)
        assert len(found) == len(set(found)) >= 20
        assert {problem["mode"] for problem in found} == {"training", "inference"}
        assert {problem["dtype"] for problem in found} == {"bfloat16", "float16", "float32"}


def test_a_sweep_is_repeatable_and_every_prefix_covers_all_operators() -> None:
    names = ["lstm", "attention", "gelu"]
    jobs = sweep_jobs(names, "cuda", count=10)
    assert jobs == sweep_jobs(names, "cuda", count=10)
    assert jobs != sweep_jobs(names, "cuda", count=10, seed=1)
    assert len({job.problem for job in jobs}) == 30
    assert [job.problem.operator for job in jobs[:6]] == names * 2


def test_published_layers_and_odd_random_ones_take_turns() -> None:
    published = set(published_problems("lstm"))
    jobs = sweep_jobs(["lstm"], "cuda", count=20)
    assert sum(job.problem in published for job in jobs) == 10
    assert any(job.problem["hidden"] % 2 for job in jobs)


def test_a_processor_gets_problems_of_its_size() -> None:
    limit = registry.operator("lstm").spaces["cpu"].max_flops
    for job in sweep_jobs(["lstm"], "cpu", count=12):
        assert registry.operator("lstm").work(job.problem).flops <= limit


def test_what_compiles_for_each_problem_runs_on_few_of_them() -> None:
    jobs = sweep_jobs(["attention"], "cuda", count=4 * COMPILED_EVERY)
    names = set(registry.implementations("attention"))
    slow = {name for name in names if name.startswith(COMPILED)}
    assert {"torch_compile", "flex"} <= slow
    complete = [job for job in jobs if set(job.implementations) == names]
    assert len(complete) == 4
    assert all(set(job.implementations) == names - slow for job in jobs if job not in complete)


def test_the_slow_ones_are_those_that_torch_compiles() -> None:
    """Which on a processor refuse because they compile."""
    for operator in registry.operators():
        some = registry.operator(operator)
        for name, found in registry.implementations(operator).items():
            refusals = {found.unsupported(some.problem(shape), replay.HERE) for shape in some.examples}
            assert name.startswith(COMPILED) == any("torch.compile" in one for one in refusals if one)


def test_operators_by_name() -> None:
    assert named_operators("gelu,lstm,gelu") == ["gelu", "lstm"]
    assert named_operators("all") == list(registry.operators())
    with pytest.raises(UnknownOperator, match="lstm"):
        named_operators("lstmm")


def test_a_grid_random_problems_and_a_sweep_are_told_apart() -> None:
    every = tuple(registry.implementations("lstm"))
    (one,) = ProfileRequest(given={"hidden": "8", "batch": "2"}).jobs()
    assert (one.problem["hidden"], one.implementations) == (8, every)
    drawn = ProfileRequest(operator="lstm", given={"mode": "inference"}, count=5, device="cpu").jobs()
    assert [job.problem["mode"] for job in drawn] == ["inference"] * 5
    swept = ProfileRequest(operators="gelu,relu", given={}, count=3, device="cpu").jobs()
    assert [job.problem.operator for job in swept] == ["gelu", "relu"] * 3


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ({"operators": "lstm", "given": {"hidden": "8"}}, "a sweep draws its own problems"),
        ({"operators": "lstm", "operator": "gru", "given": {}}, "a sweep draws its own problems"),
        ({"from_query_log": True, "operator": "gru", "given": {}}, "leave the rest out"),
        ({"outliers": True, "given": {}}, "--doubtful measures again .* name one"),
        ({"outliers": True, "operators": "gru", "count": 3, "given": {}}, "leave the rest out"),
        ({"outliers": True, "operator": "gru", "given": {"hidden": "8"}}, "leave the rest out"),
        ({"given": {}}, "Nothing to measure: name an operator"),
        (
            {"given": {"hidden": ",".join(["1"] * 1000), "batch": ",".join(["1"] * 1000)}},
            r"1,000,000 problems, 278 hours",
        ),
    ],
)
def test_requests_that_make_no_sense(words: dict, expected: str) -> None:
    with pytest.raises(InvalidRequest, match=expected):
        ProfileRequest(**words).jobs()


def test_a_plan_for_a_gpu_that_is_not_here(tmp_path) -> None:
    request = ProfileRequest(operators="gelu", given={}, count=4, device="cuda:0")
    write_jobs(tmp_path / "plan.jsonl", request.jobs())
    assert read_jobs(tmp_path / "plan.jsonl") == request.jobs()
    assert len(request.jobs()) == 4
