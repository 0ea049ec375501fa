"""`selector jobs`, `selector worker` and `selector fleet`: from a question to records, and bad input."""

from __future__ import annotations

import json

import pytest

from kernel_selector.db import Database, records
from kernel_selector.service.cli import main
from selector.selection import devices

SMALL = ["lstm", "hidden=4", "batch=1", "seq=2,3", "mode=inference"]


@pytest.fixture
def database(tmp_path):
    path = str(tmp_path / "jobs.sqlite")
    Database.open(path, create=True).close()
    return path


@pytest.fixture
def run(database, capsys):
    """Runs a command with --json; returns its document."""

    def command(*words):
        code = main([*words, "--database", database, "--json"])
        out, err = capsys.readouterr()
        assert code == 0, err
        return json.loads(out)

    return command


@pytest.fixture
def fail(database, capsys):
    """Runs a command that must fail with exit code 2; returns its message."""

    def command(*words):
        assert main([*words, "--database", database]) == 2
        return capsys.readouterr().err

    return command


@pytest.mark.timeout(600)
def test_a_job_is_made_worked_off_and_shown(run, database):
    made = run("jobs", "create", *SMALL, "--device", "cpu", "--policy", "once", "--key", "k")
    assert (made["state"], made["tasks"]["queued"]) == ("queued", 2)
    assert run("jobs", "create", *SMALL, "--device", "cpu", "--policy", "once", "--key", "k") == made
    tally = run("worker", "--device", "cpu", "--until-empty", "--name", "me")
    assert tally["tasks"] == {"done": 2, "returned": 0, "failed": 0, "lost": 0}
    found = run("jobs", "show", str(made["id"]))
    assert (found["state"], found["records"]) == ("done", tally["records"])
    assert run("jobs", "list") == {"jobs": [found]}
    with Database.open(database) as opened, opened.read() as connection:
        statuses = {record.status.value for record in records.find(connection)}
        assert records.total(connection) == tally["records"]
    assert statuses <= {"ok", "unsupported"}


def test_words_for_people(database, capsys):
    given = ["--database", database]
    assert main(["jobs", "list", *given]) == 0
    assert "jobs create" in capsys.readouterr().out
    assert main(["jobs", "create", *SMALL, "--device", "h200", *given]) == 0
    assert "Job 1: queued; lstm on nvidia-h200; 2 tasks: 2 queued" in capsys.readouterr().out
    assert main(["jobs", "list", *given]) == 0
    assert "nvidia-h200" in capsys.readouterr().out
    assert main(["jobs", "cancel", "1", *given]) == 0
    assert "Job 1: cancelled" in capsys.readouterr().out


def test_more_jobs_than_a_page(run, monkeypatch):
    numbers = [run("jobs", "create", *SMALL, "--device", "cuda")["id"] for _ in range(3)]
    from kernel_selector.service import jobs

    whole = jobs.list_jobs
    monkeypatch.setattr(jobs, "list_jobs", lambda *given, **named: whole(*given, **named, limit=2))
    assert [job["id"] for job in run("jobs", "list")["jobs"]] == numbers


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["jobs", "show", "7"], "no profiling job 7"),
        (["jobs", "cancel", "7"], "no profiling job 7"),
        (["jobs", "show", "0"], "equal to 1"),
        (["jobs", "create", "lstm", "hidden=4", "--device", "cpu"], "batch"),
        (["jobs", "create", "lstmm", "hidden=4", "--device", "cpu"], "Did you mean 'lstm'"),
        (["jobs", "create", *SMALL, "--device", "h2000"], "h2000"),
        (["jobs", "create", *SMALL], "device"),
        (["jobs", "create", *SMALL, "--device", "cpu", "--policy", "x"], "quick"),
        (["jobs", "create", *SMALL, "--device", "cpu", "--attempts", "0"], "max_attempts=0"),
        (["worker", "--service", "http://127.0.0.1:9"], "expected one of them"),
        (["worker", "--lease", "0s"], "0s"),
        (["worker", "--lease", "9999h"], "lease_s"),
        (["worker", "--device", "cuda:99"], "cuda:99"),
        (["fleet", "profile"], "--job"),
        (["fleet", "profile", "lstm", "hidden=4", "--job", "1"], "--job"),
        (["fleet", "profile", "--job", "7"], "no profiling job 7"),
        (["fleet", "profile", *SMALL, "--device", "cpu", "--address", "auto"], "is a file of this machine"),
        (["fleet", "profile", *SMALL, "--device", "cpu", "--slurm", "logs"], "is a file of this machine"),
    ],
)
def test_bad_input(fail, words, message):
    assert message in fail(*words)


def test_a_service_that_is_no_url(capsys):
    assert main(["worker", "--service", "selector.models.example"]) == 2
    assert "expected http://" in capsys.readouterr().err


@pytest.mark.parametrize(
    "how", [["--device", "h200"], ["--device", "cpu", "--address", "auto", "--slurm", "logs"]]
)
def test_a_fleet_that_is_refused_leaves_nothing_queued(fail, run, monkeypatch, how):
    monkeypatch.setattr(devices, "local_names", lambda: ("cpu",))
    fail("fleet", "profile", *SMALL, *how)
    assert {one["state"] for one in run("jobs", "list")["jobs"]} <= {"cancelled"}


def test_a_job_that_was_there_waits_for_another_fleet(fail, run, monkeypatch):
    made = run("jobs", "create", *SMALL, "--device", "h200")
    monkeypatch.setattr(devices, "local_names", lambda: ("cpu",))
    fail("fleet", "profile", "--job", str(made["id"]))
    assert run("jobs", "show", str(made["id"]))["state"] == "queued"
