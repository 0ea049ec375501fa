"""A worker measures what it is given, stores it once, and loses nothing when it has to stop."""

from __future__ import annotations

import threading
import time
from functools import partial

import pytest

from kernel_selector.db import Database, TaskLost, jobs, records
from kernel_selector.kernels import registry
from kernel_selector.service.fleet import worker as workers
from kernel_selector.service.fleet.jobs import JobRequest, cancel_job, create_job, get_job
from kernel_selector.service.fleet.queue import Assignment, Claimant, DatabaseQueue, claim, ending
from kernel_selector.service.fleet.worker import Interrupted, Worker
from kernel_selector.service.jobs import list_jobs, list_tasks
from selector import InvalidRequest, UnknownDevice, UnknownImplementation, UnknownOperator
from selector.errors import ServiceError, UnknownJob
from selector.workloads.sampling import grid
from tests.selector import replay
from tests.selector.replay_session import ReplaySession

PROBLEMS = grid("lstm", {"hidden": "32,64", "batch": "1,8"})
CANDIDATES = len(registry.implementations("lstm"))
CLAIMANT = Claimant(name="w", device=replay.HERE, environment=replay.SOFTWARE, lease_s=60)


class Session(ReplaySession):
    """`before` is called with the number of each measurement before it is taken."""

    def __init__(self, before=lambda _: None):
        super().__init__()
        self.before = before
        self.closed = 0

    def measure(self, problem, implementations):
        for record in super().measure(problem, implementations):
            self.before(len(self.measured))
            yield record

    def close(self):
        self.closed += 1


def request(**given):
    return JobRequest(**{"operator": "lstm", "problems": PROBLEMS, "devices": ["cpu"], **given})


def run(database, session, **options):
    worker = Worker(DatabaseQueue(database), lambda _: session, **{"name": "w1", **options})
    return worker.run(until_empty=True)


def total(database: Database) -> int:
    with database.read() as connection:
        return records.total(connection)


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(workers, "IDLE_S", 0.02)
    monkeypatch.setattr(workers, "FIRST_WAIT_S", 0.02)


@pytest.fixture
def job(sqlite_database):
    return create_job(sqlite_database, request(), author="ann")[0]["id"]


def test_all_tasks_are_measured_and_stored(sqlite_database, job):
    session = Session()
    tally = run(sqlite_database, session)
    assert tally.to_dict() == {
        "tasks": {"done": 4, "returned": 0, "failed": 0, "lost": 0},
        "records": 4 * CANDIDATES,
    }
    assert total(sqlite_database) == 4 * CANDIDATES
    found = get_job(sqlite_database, job)
    assert (found["state"], found["tasks"]["done"], found["records"]) == ("done", 4, 4 * CANDIDATES)
    assert found["finished_at"]
    assert session.closed


@pytest.mark.usefixtures("job")
def test_what_is_measured_already_is_left_alone_unless_asked(sqlite_database):
    run(sqlite_database, Session())
    create_job(sqlite_database, request(), author="ann")
    assert run(sqlite_database, Session()).to_dict()["records"] == 0
    create_job(sqlite_database, request(again=True, implementations=["torch_lstm"]), author="ann")
    assert run(sqlite_database, Session()).to_dict()["records"] == 4


def test_a_worker_that_is_told_to_stop_stores_what_it_has_and_gives_the_rest_back(sqlite_database, job):
    session = Session(before=lambda number: number == CANDIDATES + 2 and worker.stop())
    worker = Worker(DatabaseQueue(sqlite_database), lambda _: session)
    tally = worker.run(until_empty=True)
    assert dict(tally.tasks) == {"done": 1, "returned": 1}
    assert total(sqlite_database) == CANDIDATES + 2
    assert reasons(sqlite_database, job) == {"returned with records: its worker was stopped in it"}
    other = Session()
    assert dict(run(sqlite_database, other).tasks) == {"done": 3}
    assert len(other.measured) == 3 * CANDIDATES - 2  # what was stored is not measured again
    assert get_job(sqlite_database, job)["records"] == 4 * CANDIDATES
    assert {one["attempts"] for one in list_tasks(sqlite_database, job).items} == {1}


def reasons(store, job):
    """What people read of the tasks that have a reason."""
    return {one["reason"] for one in list_tasks(store, job).items} - {""}


@pytest.mark.parametrize("error", [Interrupted, KeyboardInterrupt])
def test_one_that_is_stopped_in_the_middle_of_a_measurement_too(sqlite_database, job, error):
    def before(number):
        if number == 3:
            raise error

    tally = run(sqlite_database, Session(before))
    assert dict(tally.tasks) == {"returned": 1}
    assert total(sqlite_database) == 2
    assert get_job(sqlite_database, job)["tasks"]["queued"] == 4
    assert reasons(sqlite_database, job) == {
        "returned with records: its worker was stopped in a measurement of it"
    }


def test_an_error_is_tried_again_and_then_told(sqlite_database):
    number = create_job(sqlite_database, request(max_attempts=2), author="ann")[0]["id"]

    def before(_):
        raise RuntimeError("no such device")

    assert dict(run(sqlite_database, Session(before)).tasks) == {"failed": 8}
    found = get_job(sqlite_database, number)
    assert (found["state"], found["tasks"]["failed"]) == ("failed", 4)
    assert found["reasons"] == ["RuntimeError: no such device"]


def test_a_cancelled_job_stops_its_workers(sqlite_database, job):
    cancelled = threading.Event()

    def before(number):
        if number == 2:
            cancel_job(sqlite_database, job, author="ann")
            cancelled.wait(2)  # until a heartbeat has noticed

    tally = run(sqlite_database, Session(before), lease_s=1)
    assert dict(tally.tasks) == {"lost": 1}
    assert total(sqlite_database) == 0
    assert get_job(sqlite_database, job)["state"] == "cancelled"


def test_who_lost_its_lease_stores_nothing(sqlite_database, job):
    def before(number):
        if number == 1:  # the clock jumps, and another worker is quick
            with sqlite_database.write() as connection:
                connection.exec_driver_sql("UPDATE task SET renewed_s = renewed_s - 1e6 WHERE owner = 'slow'")
            run(sqlite_database, Session(), name="quick")

    tally = run(sqlite_database, Session(before), name="slow", lease_s=3600)
    assert dict(tally.tasks) == {"lost": 1}
    assert total(sqlite_database) == 4 * CANDIDATES
    found = get_job(sqlite_database, job)
    assert (found["state"], found["records"]) == ("done", 4 * CANDIDATES)


@pytest.mark.usefixtures("job")
def test_a_task_that_is_done_takes_no_further_records(sqlite_database):
    queue = DatabaseQueue(sqlite_database)
    assignment = claim(sqlite_database, CLAIMANT).assignment
    first, more = (replay.record(assignment.problem, name) for name in ("torch_lstm", "hoisted"))
    queue.end(assignment, "done", [first])
    queue.end(assignment, "done", [first])
    with pytest.raises(TaskLost, match="without 1 of these records"):
        queue.end(assignment, "done", [first, more])
    assert total(sqlite_database) == 1


@pytest.mark.usefixtures("job")
def test_a_heartbeat_keeps_the_task_longer_than_its_lease(sqlite_database):
    def before(number):
        if number == 1:
            threading.Event().wait(1.6)
            with sqlite_database.write() as connection:
                assert jobs.expire(connection) == 0

    assert dict(run(sqlite_database, Session(before), lease_s=1).tasks) == {"done": 4}


class Barred(DatabaseQueue):
    """Its token ends while a task is measured."""

    def renew(self, *_):
        raise ServiceError("answered 401: expected a valid token.")

    end = renew


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_worker_whose_token_ends_measures_no_further_and_says_why(sqlite_database, job):
    session = Session(lambda _: time.sleep(1.0))
    worker = Worker(Barred(sqlite_database), lambda _: session, name="w1", lease_s=1.0)
    with pytest.raises(ServiceError, match="401"):
        worker.run(until_empty=True)
    assert 1 <= len(session.measured) < CANDIDATES
    assert get_job(sqlite_database, job)["tasks"]["running"] == 1  # until its lease runs out


class Flaky(DatabaseQueue):
    """Answers every other time."""

    def __init__(self, store):
        super().__init__(store)
        self.failed = 0

    def _once_in_a_while(self):
        self.failed += 1
        if self.failed % 2:
            raise self.passing[0]("gone")

    def claim(self, claimant):
        self._once_in_a_while()
        return super().claim(claimant)

    def end(self, *arguments):
        super().end(*arguments)
        self._once_in_a_while()  # the answer is lost, and the worker asks again


def test_an_outage_is_waited_for_and_nothing_is_counted_twice(sqlite_database, job):
    said = []
    worker = Worker(Flaky(sqlite_database), lambda _: Session(), report=said.append)
    assert dict(worker.run(until_empty=True).tasks) == {"done": 4}
    assert total(sqlite_database) == 4 * CANDIDATES
    assert get_job(sqlite_database, job)["records"] == 4 * CANDIDATES
    assert any("waiting" in line and "gone" in line for line in said)


@pytest.mark.usefixtures("job")
def test_patience_ends(sqlite_database):
    queue = Flaky(sqlite_database)
    queue._once_in_a_while = lambda: (_ for _ in ()).throw(queue.passing[1]("gone for good"))
    worker = Worker(queue, lambda _: Session(), patience_s=0.05)
    with pytest.raises(queue.passing[1], match="for good"):
        worker.run()


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"operator": "lstmm"}, UnknownOperator, "Did you mean 'lstm'"),
        ({"devices": ["h2000"]}, UnknownDevice, "h2000"),
        ({"devices": []}, InvalidRequest, "on 0 devices"),
        ({"problems": []}, InvalidRequest, "0 problems"),
        ({"policy": "quickest"}, LookupError, "quick"),
        ({"implementations": ["fuse"]}, UnknownImplementation, "Did you mean 'fused'"),
        ({"implementations": []}, InvalidRequest, "expected some"),
        ({"max_attempts": 0}, InvalidRequest, "max_attempts=0"),
        ({"idempotency_key": ""}, InvalidRequest, "idempotency_key"),
        ({"idempotency_key": "a\0"}, InvalidRequest, "idempotency_key"),
        ({"problems": grid("gru", {"hidden": "32", "batch": "1"})}, InvalidRequest, "problems of lstm"),
    ],
)
def test_jobs_that_are_none(sqlite_database, given, error, words):
    with pytest.raises(error, match=words):
        create_job(sqlite_database, request(**given), author="ann")
    assert list_jobs(sqlite_database).items == []


def test_devices_have_many_names_and_one_key(sqlite_database):
    given = request(devices=["h200", "NVIDIA H200", "cuda"], problems=PROBLEMS[:1] * 2)
    found = create_job(sqlite_database, given, author="ann")[0]
    assert found["devices"] == ["cuda", "nvidia-h200"]
    assert found["tasks"]["queued"] == 2


def test_jobs_that_do_not_exist(sqlite_database):
    for function in (get_job, partial(cancel_job, author="ann"), list_tasks):
        with pytest.raises(UnknownJob, match="no profiling job 7"):
            function(sqlite_database, 7)


@pytest.mark.usefixtures("job")
def test_an_assignment_can_be_sent(sqlite_database):
    assignment = claim(sqlite_database, CLAIMANT).assignment
    assert assignment is not None
    assert Assignment.from_dict(assignment.to_dict()) == assignment
    for outcome, reason in (("finished", ""), ("failed", "")):
        with pytest.raises(InvalidRequest, match="expected one of done"):
            ending(assignment.task, assignment.lease, outcome, reason=reason)


@pytest.mark.parametrize("lease_s", [0, -1, 1e9, float("nan")])
def test_leases_of_no_use(sqlite_database, lease_s):
    claimant = Claimant(name="w", device=replay.HERE, environment=replay.SOFTWARE, lease_s=lease_s)
    with pytest.raises(InvalidRequest, match="lease_s"):
        claim(sqlite_database, claimant)
