"""Lists of problems as files, and shares of them."""

import pytest

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import SelectorError
from kernel_selector.kernels.measure.jobs import InvalidJobs, Job, read_jobs, share, write_jobs

SMALL = registry.operator("lstm").problem(hidden=8, batch=2, seq=3)
OTHER = registry.operator("gelu").problem(elements=40)


def test_a_file_reads_back_as_it_was_written(tmp_path):
    jobs = [Job(SMALL, ("hoisted", "torch_lstm")), Job(OTHER, ("torch_gelu",))]
    file = tmp_path / "plan.jsonl"
    write_jobs(file, jobs)
    assert read_jobs(file) == jobs


def test_a_problem_named_twice_is_measured_once_with_all_its_implementations(tmp_path):
    file = tmp_path / "plan.jsonl"
    write_jobs(file, [Job(SMALL, ("hoisted",)), Job(OTHER, ("fused",)), Job(SMALL, ("unfused", "hoisted"))])
    assert read_jobs(file) == [Job(SMALL, ("hoisted", "unfused")), Job(OTHER, ("fused",))]


def test_without_names_every_implementation_runs(tmp_path):
    file = tmp_path / "plan.jsonl"
    file.write_text('\n{"operator": "gelu", "hyperparameters": {"elements": 40}}\n')
    assert read_jobs(file) == [Job(OTHER, tuple(registry.implementations("gelu")))]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", "names no problem"),
        ("milk", "line 1: 'milk': expected a line such as"),
        ("[1, 2]", "expected a line such as"),
        ('{"operator": "lstm"}', "expected a line such as"),
        ('{"operator": "lstmm", "hyperparameters": {}}', "Did you mean 'lstm'"),
        ('{"operator": "gelu", "hyperparameters": {"elements": 0}}', "elements=0"),
        ('{"operator": "gelu", "hyperparameters": {"elemnts": 1}}', "Did you mean 'elements'"),
        ('{"operator": "gelu", "hyperparameters": 3}', "expected a line such as"),
        (
            '{"operator": "gelu", "hyperparameters": {"elements": 1}, "implementations": ["fussed"]}',
            "Did you mean 'fused'",
        ),
        (
            '{"operator": "gelu", "hyperparameters": {"elements": 1}, "implementations": 3}',
            "expected a line such as",
        ),
        ("[" * 100_000, "expected a line such as"),
    ],
)
def test_what_is_no_list_is_refused_with_its_line(tmp_path, line, words):
    file = tmp_path / "plan.jsonl"
    file.write_text(line)
    with pytest.raises(InvalidJobs) as refusal:
        read_jobs(file)
    assert isinstance(refusal.value, SelectorError)
    assert words in str(refusal.value)
    assert len(str(refusal.value)) < 600


def test_shares_are_disjoint_and_leave_nothing_out():
    jobs = [Job(registry.operator("gelu").problem(elements=size), ("fused",)) for size in range(1, 8)]
    parts = [share(jobs, f"{index}/3") for index in (1, 2, 3)]
    assert sorted((job for part in parts for job in part), key=lambda job: job.problem["elements"]) == jobs
    assert [len(part) for part in parts] == [3, 2, 2]
    assert share(jobs, None) == jobs


@pytest.mark.parametrize("text", ["", "0/4", "5/4", "1", "a/b", "-1/4", "1/0"])
def test_no_shares(text):
    with pytest.raises(InvalidJobs, match="such as 1/4"):
        share([], text)
