"""Workers that are killed: each task is finished, and its records are stored, exactly once."""

from __future__ import annotations

import multiprocessing
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from kernel_selector.db import Database, jobs, records
from kernel_selector.service.fleet.jobs import JobRequest, create_job, get_job
from kernel_selector.service.fleet.launch import Source
from kernel_selector.service.fleet.queue import Claimant, DatabaseQueue
from selector.workloads.sampling import grid
from tests.service.fleet.queue_workers import DEVICE, SOFTWARE, PretendedSession, start

ROOT = Path(__file__).parents[3]
PROBLEMS = grid("lstm", {"hidden": ",".join(map(str, range(8, 32))), "batch": "1"})
NAMES = ("torch_lstm", "unfused")


@pytest.fixture(scope="module")
def context():
    """Starts processes that have imported everything already."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(["tests.service.fleet.queue_workers", "kernel_selector.db"])
    return made


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def database(request, tmp_path):
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres_url")
    else:
        url = str(tmp_path / "jobs.sqlite")
    with Database.open(url, create=True) as opened:
        yield opened


def new_job(database):
    request = JobRequest(
        operator="lstm", problems=PROBLEMS, devices=["cpu"], implementations=NAMES, max_attempts=100
    )
    return create_job(database, request, author="ann")[0]["id"]


def measured(database):
    """How often each problem was measured by each implementation."""
    with database.read() as connection:
        return Counter((record.problem.key, record.implementation) for record in records.find(connection))


def test_threads_that_claim_at_once_get_different_tasks(database):
    new_job(database)
    claimant = Claimant(name="w", device=DEVICE, environment=SOFTWARE, lease_s=60)
    taken, barrier = [], threading.Barrier(6)

    def claim_all():
        queue = DatabaseQueue(database)
        barrier.wait()
        while (offer := queue.claim(claimant)).assignment is not None:
            taken.append(offer.assignment)

    threads = [threading.Thread(target=claim_all) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(one.problem.key for one in taken) == sorted(one.key for one in PROBLEMS)
    assert len({one.lease for one in taken}) == len(PROBLEMS)


@pytest.mark.timeout(1800)
def test_processes_that_are_killed_lose_and_repeat_nothing(database, context):
    number = new_job(database)
    source = Source(database=database.url)
    draw, kills, names = random.Random(0), 0, iter(range(10_000))

    def begin():
        return start(context, source, f"w{next(names)}", 2.0, 0.02)

    running = [begin() for _ in range(4)]
    try:
        while (found := get_job(database, number))["state"] not in ("done", "failed"):
            time.sleep(draw.uniform(0.1, 0.4))
            if kills < 12 and found["tasks"]["done"]:
                victim = draw.choice(running)
                victim.kill()
                victim.join()
                kills += 1
            running = [process if process.exitcode is None else begin() for process in running]
    finally:
        for process in running:
            process.join(60)
            process.kill()
    assert (found["state"], found["tasks"]["done"]) == ("done", len(PROBLEMS)), found
    expected = {(problem.key, name): 1 for problem in PROBLEMS for name in NAMES}
    assert measured(database) == expected
    assert found["records"] == len(expected)


def test_a_killed_worker_s_task_goes_to_the_next_when_its_lease_runs_out(database, context):
    new_job(database)
    victim = start(context, Source(database=database.url), "victim", 1.0, 3600.0)
    deadline = time.monotonic() + 600
    while not (found := get_job(database, 1))["tasks"]["running"]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert found["tasks"]["done"] == 0
    victim.kill()
    victim.join()
    deadline = time.monotonic() + 300
    while True:
        with database.write() as connection:
            if jobs.expire(connection):
                break
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert get_job(database, 1)["tasks"]["queued"] == len(PROBLEMS)


GRACEFUL = """
import sys
from kernel_selector.service.fleet import launch
from tests.service.fleet.queue_workers import PretendedSession
launch.sessions = lambda _: lambda policy: PretendedSession(0.3)
setup = launch.WorkerSetup(grace_s=float(sys.argv[2]))
print("started", flush=True)
print(launch.work(launch.Source(database=sys.argv[1]), setup).to_dict()["tasks"], flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_worker_with_its_task_given_back(tmp_path, number):
    path = tmp_path / "jobs.sqlite"
    with Database.open(path, create=True) as database:
        job = new_job(database)
        process = subprocess.Popen(
            [sys.executable, "-c", GRACEFUL, str(path), "20"], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout
        assert process.stdout.readline() == "started\n"
        deadline = time.monotonic() + 600
        while not get_job(database, job)["tasks"]["running"]:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(number)
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        found = get_job(database, job)
        assert found["tasks"]["running"] == 0
        assert "'lost': 0" in said
        assert sum(measured(database).values()) == found["records"]


def test_the_session_of_these_tests_makes_records():
    (record,) = PretendedSession(0.0).measure(PROBLEMS[0], ["torch_lstm"])
    assert record.problem == PROBLEMS[0]
