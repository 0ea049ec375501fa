"""Profiling jobs: tasks are claimed by one worker at a time, and each is finished once."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from kernel_selector.db import IdempotencyKeyReused, TaskLost, jobs, jobs_listing
from kernel_selector.kernels.contract import Problem

DEVICES = ("nvidia-h200", "cuda")


def problem(number):
    return Problem("lstm", (("hidden", 64 + number), ("bias", True), ("mode", "training")))


def new_job(count=2, **given):
    values = {"author": "ann", "operator": "lstm", "devices": ("cuda",)}
    return jobs.NewJob(problems=tuple(map(problem, range(count))), **values | given)


@pytest.fixture
def add(database):
    """Stores a job and returns its id."""

    def store(*arguments, **given):
        with database.write() as connection:
            return jobs.add(connection, new_job(*arguments, **given))[0]

    return store


@pytest.fixture
def claim(database):
    """What a worker with an H200 is given."""

    def take(owner="w1", lease_s=60.0, devices=DEVICES):
        with database.write(in_turn=False) as connection:
            return jobs.claim(connection, devices=devices, owner=owner, lease_s=lease_s)

    return take


@pytest.fixture
def end(database):
    """Ends a claim by one of the functions of `jobs`."""

    def finish(how, claimed, **given):
        with database.write() as connection:
            return how(connection, task=claimed.task, lease=claimed.lease, **given)

    return finish


@pytest.fixture
def status(database):
    """A job as it is."""

    def look(number):
        with database.read() as connection:
            (found,) = jobs_listing.jobs(connection, limit=2, only=number)
        return found

    return look


@pytest.fixture
def move_clock(database):
    """The clock jumps by some seconds: what counts is its distance to the last heartbeat."""

    def move(seconds):
        with database.write() as connection:
            connection.execute(text("UPDATE task SET renewed_s = renewed_s - :by"), {"by": seconds})

    return move


def test_a_job_from_beginning_to_end(add, claim, end, status):
    number = add(2)
    assert status(number).state == "queued"
    first, second = claim(), claim("w2")
    assert [one.problem for one in (first, second)] == [problem(0), problem(1)]
    assert (first.job, first.attempt, first.policy, first.implementations) == (number, 1, "quick", None)
    assert first.lease != second.lease
    assert claim() is None
    assert status(number).state == "running"
    assert end(jobs.finish, first) is True
    assert status(number).finished_at is None
    assert end(jobs.finish, second) is True
    found = status(number)
    assert (found.state, found.tasks["done"], found.devices) == ("done", 2, ("cuda",))
    assert found.created_at <= found.finished_at


def test_a_problem_on_each_device_for_those_that_have_it(add, claim):
    add(1, devices=("cpu", "nvidia-h200"))
    assert claim(devices=("amd-epyc", "cuda")) is None
    assert claim(devices=("nvidia-h200", "cuda")).problem == problem(0)
    assert claim(devices=("nvidia-h200", "cuda")) is None
    assert claim(devices=("intel-xeon", "cpu")).problem == problem(0)


def test_what_was_asked_for_reaches_the_worker(add, claim):
    add(1, policy="thorough", implementations=("fused",), again=True, max_attempts=7)
    claimed = claim(lease_s=9)
    assert (claimed.policy, claimed.implementations, claimed.again) == ("thorough", ("fused",), True)
    assert (claimed.max_attempts, claimed.lease_s) == (7, 9)


def test_finishing_again_is_known_and_changes_nothing(add, claim, end, status):
    number = add(1)
    claimed = claim()
    assert end(jobs.finish, claimed) is True
    before = status(number)
    assert end(jobs.finish, claimed) is False
    assert status(number) == before


@pytest.mark.parametrize("max_attempts", [1, 2])
@pytest.mark.parametrize("how", [jobs.give_back, jobs.fail])
def test_returning_or_failing_again_changes_nothing_until_the_next_claim(
    add, claim, end, status, how, max_attempts
):
    number, given = add(1, max_attempts=max_attempts), {"reason": "stopped", "records": 1}
    claimed = claim()
    assert end(how, claimed, **given) is True
    before = status(number)
    assert end(how, claimed, **given) is False
    assert status(number) == before
    (other,) = {jobs.give_back, jobs.fail} - {how}
    for another, more in ((jobs.finish, {}), (jobs.renew, {}), (other, given)):
        with pytest.raises(TaskLost):
            end(another, claimed, **more)
    assert status(number) == before
    if claim() is not None:
        before = status(number)
        with pytest.raises(TaskLost):
            end(how, claimed, **given)
        assert status(number) == before


def test_who_lost_a_lease_cannot_finish_what_another_has(add, claim, end, move_clock, status):
    number = add(1)
    slow = claim("slow", lease_s=60)
    move_clock(61)
    quick = claim("quick")
    assert quick.task == slow.task
    assert quick.attempt == 2
    for how, given in (
        (jobs.finish, {}),
        (jobs.renew, {}),
        (jobs.give_back, {}),
        (jobs.fail, {"reason": "x"}),
    ):
        with pytest.raises(TaskLost, match="claim another one"):
            end(how, slow, **given)
    assert end(jobs.finish, quick) is True
    with pytest.raises(TaskLost):
        end(jobs.finish, slow)
    assert status(number).tasks["done"] == 1


@pytest.mark.parametrize("ending", [jobs.finish, jobs.renew])
def test_who_was_late_goes_on_while_nobody_has_the_task(
    database, add, claim, end, move_clock, status, ending
):
    number = add(1)
    late = claim()
    move_clock(100)
    with database.write() as connection:
        assert jobs.expire(connection) == 1
    assert status(number).tasks["queued"] == 1
    end(ending, late)
    assert status(number).tasks["queued"] == 0
    assert claim("other") is None


def test_a_heartbeat_extends_the_lease(add, claim, end, move_clock):
    add(1)
    claimed = claim(lease_s=60)
    move_clock(59)
    end(jobs.renew, claimed)
    move_clock(59)
    assert claim("other") is None
    move_clock(2)
    assert claim("other") is not None


@pytest.mark.parametrize("jump_s", [61, -61, 1e7, -1e7])
def test_a_clock_that_jumps_frees_the_task_once(add, claim, end, move_clock, jump_s):
    add(1)
    first = claim("first", lease_s=60)
    move_clock(jump_s)
    second = claim("second", lease_s=60)
    assert second is not None
    assert claim("third") is None
    assert end(jobs.finish, second)
    with pytest.raises(TaskLost):
        end(jobs.finish, first)


def test_small_corrections_of_the_clock_change_nothing(add, claim, move_clock):
    add(1)
    claim(lease_s=60)
    for by in (30, -60, 30):
        move_clock(by)
        assert claim("other") is None


def test_a_task_that_kills_its_workers_fails_with_the_reason(add, claim, move_clock, status, database):
    number = add(1, max_attempts=2)
    for attempt in (1, 2):
        assert claim().attempt == attempt
        move_clock(1000)
    assert claim() is None
    found = status(number)
    assert (found.state, found.tasks["failed"]) == ("failed", 1)
    assert "lease ran out" in found.reasons[0]
    with database.read() as connection:
        assert jobs_listing.depth(connection) == ({("cuda", "failed"): 1}, 2)


def test_a_failed_attempt_is_repeated_after_the_others(add, claim, end, status):
    number = add(2, max_attempts=2)
    end(jobs.fail, claim(), reason="no memory")
    other = claim()
    assert other.problem == problem(1)
    again = claim()
    assert (again.problem, again.attempt) == (problem(0), 2)
    end(jobs.fail, again, reason="still no memory")
    end(jobs.finish, other)
    found = status(number)
    assert (found.state, found.reasons) == ("failed", ("still no memory",))
    assert found.finished_at is not None


def test_what_is_given_back_costs_no_attempt(add, claim, end):
    add(1, max_attempts=1)
    for _ in range(3):
        end(jobs.give_back, claim())
    assert claim().attempt == 1


def test_a_return_with_records_begins_the_count_of_returns_anew(add, claim, end, status):
    """A slow task on machines that are preempted brings some of its records at each attempt."""
    number, given = add(1), {"reason": "stopped"}
    for records in (0, 1) * jobs.MOST_RETURNS:
        end(jobs.give_back, claim(), records=records, **given)
    for _ in range(jobs.MOST_RETURNS - 1):
        end(jobs.give_back, claim(), **given)
    assert (status(number).state, status(number).records) == ("queued", jobs.MOST_RETURNS)
    end(jobs.give_back, claim(), **given)
    assert status(number).reasons == ("returned 5 times, as often as a task may be: stopped",)


def test_a_task_that_is_returned_says_why(database, add, claim, end):
    number = add(1)
    for records, words in ((0, "returned 1 of 5 times: stopped"), (2, "returned with records: stopped")):
        end(jobs.give_back, claim(), records=records, reason="stopped")
        with database.read() as connection:
            (task,) = jobs_listing.tasks(connection, job=number, after=0, limit=2)
        assert (task["reason"], task["records"]) == (words, records)


def test_a_cancelled_job_leaves_what_is_done(database, add, claim, end, status):
    number, other = add(3), add(1)
    end(jobs.finish, claim())
    running = claim()
    with database.write() as connection:
        assert jobs.cancel(connection, job=number) == 2
        assert jobs.cancel(connection, job=number) == 0
    for how in (jobs.renew, jobs.finish):
        with pytest.raises(TaskLost):
            end(how, running)
    found = status(number)
    assert (found.state, found.tasks["done"], found.tasks["cancelled"]) == ("cancelled", 1, 2)
    assert claim().job == other


def test_the_same_key_is_the_same_job(database):
    with database.write() as connection:
        first = jobs.add(connection, new_job(idempotency_key="k"))
        assert first[1] is True
        assert jobs.add(connection, new_job(idempotency_key="k")) == (first[0], False)
        assert jobs.add(connection, new_job(idempotency_key="k", author="bob"))[1] is True
        assert jobs.add(connection, new_job())[1] is True
        for other in ({"policy": "thorough"}, {"devices": ("cpu",)}, {"count": 1}, {"again": True}):
            with pytest.raises(IdempotencyKeyReused, match=rf"another job, {first[0]}"):
                jobs.add(connection, new_job(idempotency_key="k", **other))
    with database.read() as connection:
        assert len(jobs_listing.jobs(connection, limit=10)) == 3


def test_pages(database, add, claim):
    numbers = [add(3), add(1), add(1)]
    claim()
    with database.read() as connection:
        found = jobs_listing.jobs(connection, limit=2)
        assert [one.id for one in found] == numbers[:2]
        assert [one.id for one in jobs_listing.jobs(connection, after=numbers[1], limit=2)] == numbers[2:]
        assert jobs_listing.jobs(connection, limit=2, only=99) == []
        first = jobs_listing.tasks(connection, job=numbers[0], after=0, limit=2)
        (last,) = jobs_listing.tasks(connection, job=numbers[0], after=first[-1]["id"], limit=2)
    assert [one["state"] for one in (*first, last)] == ["running", "queued", "queued"]
    assert first[0]["owner"] == "w1"
    assert "lease" not in first[0]


def test_the_queues_depth(database, add, claim, end):
    add(3, devices=("cuda", "cpu"))
    end(jobs.finish, claim())
    claim()
    with database.read() as connection:
        counts, expiries = jobs_listing.depth(connection)
    assert counts == {
        ("cpu", "queued"): 3,
        ("cuda", "queued"): 1,
        ("cuda", "running"): 1,
        ("cuda", "done"): 1,
    }
    assert expiries == 0
