"""Lists of problems, judged by several processes and timed by one, with candidates that misbehave."""

import json
import re
import threading
import time
from dataclasses import replace

import planted
import pytest

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import MeasurementFailed, Record, Status
from kernel_selector.kernels.measure import ONCE, Session
from kernel_selector.kernels.measure import __main__ as command
from kernel_selector.kernels.measure.__main__ import main
from kernel_selector.kernels.measure.jobs import Job, write_jobs
from kernel_selector.kernels.measure.parallel import MOST_HANGS, Fleet, default_judges

SMALL = {"hidden": 8, "batch": 2, "seq": 3}
EXPECTED = {
    "segfault": Status.CRASHED,
    "hang": Status.TIMEOUT,
    "wrong": Status.INCORRECT,
    "greedy": Status.OUT_OF_MEMORY,
    "leaks": Status.OK,
    "torch_lstm": Status.OK,
    "fused": Status.UNSUPPORTED,
}


def problem(**given):
    return registry.operator("lstm").problem({**SMALL, **given})


@pytest.fixture(scope="module")
def planted_sweep(tmp_path_factory):
    """Two problems with every kind of misbehaviour, judged by two processes; and what the sweep said."""
    folder = planted.checkout(tmp_path_factory.mktemp("planted"), *(EXPECTED.keys() & planted.BODIES.keys()))
    plan = folder / "plan.jsonl"
    lines = [
        {"operator": "lstm", "hyperparameters": {**SMALL, "hidden": hidden}, "implementations": [*EXPECTED]}
        for hidden in (8, 9)
    ]
    plan.write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = (
        "--problems",
        str(plan),
        "--judges",
        "2",
        "--timeout",
        "6s",
        "--output",
        str(folder / "out.jsonl"),
    )
    run = planted.measure(folder, *words)
    assert run.returncode == 0, run.stderr
    text = (folder / "out.jsonl").read_text()
    return [Record.from_json(line) for line in text.splitlines()], run.stderr


@pytest.mark.full
@pytest.mark.parametrize("name", EXPECTED)
def test_each_misbehaviour_costs_one_record_a_problem(planted_sweep, name):
    records, _ = planted_sweep
    found = [record for record in records if record.implementation == name]
    assert {record.problem["hidden"] for record in found} == {8, 9}
    assert [record.status for record in found] == [EXPECTED[name]] * 2, [one.reason for one in found]


@pytest.mark.full
def test_a_crash_says_after_how_long(planted_sweep):
    records, _ = planted_sweep
    (first, *_) = [record for record in records if record.implementation == "segfault"]
    assert "SIGSEGV" in first.reason
    assert " s)" in first.reason


@pytest.mark.full
def test_the_sweep_reports_what_became_of_all(planted_sweep):
    _, said = planted_sweep
    assert "2 problems to measure, 0 already done" in said
    assert "2 crashed, 2 incorrect, 4 ok, 2 out_of_memory, 2 timeout, 2 unsupported" in said
    assert re.search(r"The runs of a candidate spread by \d+\.\d%", said)
    assert "candidates a second, of which" in said
    assert re.search(r"judging: .*the correctness gate \d", said)
    assert re.search(r"timing: .*starting \d", said)


class Stub:
    """A session without a device: `hang` never answers, everything else passes."""

    torch_device, seed, policy = "cpu", 0, ONCE

    def __init__(self, lost_after: int | None = None):
        self.asked: list[tuple[str, str]] = []
        self.seconds: dict[str, float] = {}
        self.lost_after = lost_after
        self.interrupted = threading.Event()

    takes_s = 0.0
    started = False

    def start(self):
        self.started = True

    def interrupt(self):
        self.interrupted.set()

    def measure(self, problem, implementations, *, judged=None):  # noqa: ARG002 (nothing is judged here)
        for name in implementations:
            if len(self.asked) == self.lost_after:
                raise MeasurementFailed("the device is lost")
            self.asked.append((problem.key, name))
            time.sleep(self.takes_s)
            yield make(problem, name)


class Judge(Stub):
    """A judge; the second one of a fleet finds no memory to start again in."""

    made: list["Judge"] = []

    def __init__(self, *_given, **_named):
        super().__init__()
        self.made.append(self)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def judge(self, problem, implementations):
        time.sleep(0.01)
        self.asked.append((problem.key, ""))
        if self is self.made[1]:
            raise MeasurementFailed("the process did not start: CUDA out of memory")
        return dict.fromkeys(implementations), iter(())


def judge_by(judge, monkeypatch, *, all_start=False, **limits):
    """Let fleets judge by a stub, within other limits; with `all_start` it finds memory each time."""
    for name, value in {"Session": judge, **limits}.items():
        monkeypatch.setattr(f"kernel_selector.kernels.measure.parallel.{name}", value)
    monkeypatch.setattr(Judge, "made", [None, None] if all_start else [])


def test_a_judge_that_cannot_start_again_does_not_end_the_sweep(monkeypatch):
    """Seen on an H100: 14 judges held its memory, one could not come back, and 500 judgements were lost."""
    judge_by(Judge, monkeypatch)
    jobs = [Job(problem(hidden=hidden), ("a", "b")) for hidden in range(8, 20)]
    timing = Stub()
    steps = list(Fleet(sessions=[timing], judges=3).run(jobs))
    lost = Judge.made[1].asked
    assert len(lost) == 1  # it takes no other
    assert {step.job for step in steps if step.record is None and not step.judged} == set(jobs)
    assert sorted(timing.asked) == sorted(
        (job.problem.key, name) for job in jobs for name in job.implementations
    )
    assert timing.asked[-1][0] == lost[0][0]  # what nobody judged comes last
    assert timing.started  # meanwhile


def test_a_process_that_cannot_start_beside_the_judges_starts_after_them(monkeypatch):
    class Late(Stub):
        def start(self):
            raise MeasurementFailed("the process did not start: CUDA out of memory")

    judge_by(Judge, monkeypatch)
    timing = Late()
    list(Fleet(sessions=[timing], judges=2).run(jobs(3, "fused")))
    assert len(timing.asked) == 3


def test_what_was_judged_is_timed_in_rounds(monkeypatch):
    """A sweep that is interrupted loses the judging of one round; a budget's second half is not one rest."""

    class Slow(Judge):
        def judge(self, problem, implementations):
            time.sleep(0.03)
            return super().judge(problem, implementations)

    # a round in which a busy machine judges none would be the last
    judge_by(Slow, monkeypatch, all_start=True, ROUND_S=0.25)
    listed, timing = jobs(30, "fused"), Stub()
    make(problem(), "fused")
    ends = [step for step in Fleet(sessions=[timing], judges=1).run(listed) if step.record is None]
    order = [step.judged for step in ends]
    rounds = sum(one and not before for before, one in zip([False, *order], order, strict=False))
    assert rounds >= 3
    for judged in (True, False):  # each once
        assert [step.job for step in ends if step.judged is judged] == listed
    assert [key for key, _ in timing.asked] == [job.problem.key for job in listed]


def test_judges_that_cannot_start_are_not_started_again(monkeypatch):
    class Away(Judge):
        def judge(self, problem, implementations):  # noqa: ARG002
            raise MeasurementFailed("the process did not start: CUDA out of memory")

    judge_by(Away, monkeypatch)
    timing = Stub()
    list(Fleet(sessions=[timing], judges=4).run(jobs(20, "fused")))
    assert len(Judge.made) == 4
    assert len(timing.asked) == 20


def test_no_round_of_judging_begins_that_would_end_too_late(monkeypatch):
    class Slow(Judge):
        def judge(self, problem, implementations):
            time.sleep(0.4)
            return super().judge(problem, implementations)

    judge_by(Slow, monkeypatch, all_start=True, ROUND_S=0.1, LEAST_S=0.0)
    make(problem(), "fused")
    end = time.monotonic() + 0.6
    steps = list(Fleet(sessions=[Stub()], judges=1, end=end).run(jobs(9, "fused")))
    assert time.monotonic() < end + 0.2
    assert sum(step.judged and step.record is None for step in steps) == 1
    assert sum(not step.judged and step.record is None for step in steps) == 9


MADE = []


def make(problem, name):
    """A record without times, as a hang or a refusal leaves it."""
    if not MADE:
        with Session("cpu", policy=ONCE) as session:
            (record,) = session.measure(problem, ["fused"])
        MADE.append(record)
    status = Status.TIMEOUT if name == "hang" else Status.UNSUPPORTED
    return replace(MADE[0], problem=problem, implementation=name, status=status)


def jobs(count, *names):
    return [Job(problem(hidden=size), names) for size in range(1, count + 1)]


def test_who_hangs_too_often_is_given_up():
    session = Stub()
    fleet = Fleet(sessions=[session])
    ended = [step.job for step in fleet.run(jobs(6, "fused", "hang")) if step.record is None]
    assert len(ended) == 6
    assert sum(name == "hang" for _, name in session.asked) == MOST_HANGS
    assert fleet.given_up() == [("lstm", "hang")]


def test_two_devices_share_the_list_and_run_each_problem_once():
    sessions = [Stub(), Stub()]
    steps = list(Fleet(sessions=sessions).run(jobs(20, "fused")))
    keys = [key for session in sessions for key, _ in session.asked]
    assert sorted(keys) == sorted({step.job.problem.key for step in steps})
    assert len(keys) == 20


def test_a_device_lost_in_mid_sweep_loses_no_record_and_says_so():
    lost, healthy = Stub(lost_after=2), Stub()
    seen = []
    with pytest.raises(MeasurementFailed, match="the device is lost"):
        seen.extend(step for step in Fleet(sessions=[lost, healthy]).run(jobs(12, "fused")))
    # what the other device measured meanwhile has been given out before the error
    measured = len(lost.asked) + len(healthy.asked)
    assert measured >= 11


def test_a_listener_that_leaves_ends_the_sessions():
    session = Stub()
    steps = Fleet(sessions=[session]).run(jobs(50, "fused"))
    next(steps)
    steps.close()
    assert session.interrupted.is_set()


def test_a_spent_budget_starts_nothing():
    session = Stub()
    assert list(Fleet(sessions=[session], end=0.0).run(jobs(3, "fused"))) == []
    assert session.asked == []


def test_a_problem_that_would_end_too_late_is_not_started():
    session = Stub()
    session.takes_s = 0.2
    make(problem(), "fused")
    ended = list(Fleet(sessions=[session], end=time.monotonic() + 0.3).run(jobs(9, "fused")))
    assert len(session.asked) == 1
    assert sum(step.record is None for step in ended) == 1


def test_processors_have_no_judges():
    assert default_judges(["cpu"]) == 0


@pytest.mark.parametrize(
    ("device", "judges", "threads"), [("cuda:0", 2, 1), ("cuda:0", 0, None), ("cpu", 2, None)]
)
def test_who_times_compiles_nothing_beside_judges(monkeypatch, device, judges, threads):
    """On a processor the threads are those that are timed."""
    asked = []

    def session(_device, *, threads, **_others):
        asked.append(threads)
        raise MeasurementFailed("enough")

    monkeypatch.setattr(command, "Session", session)
    assert main(["gelu", "elements=8", "--device", device, "--judges", str(judges)]) == 1
    assert asked == [threads]


def test_a_list_is_resumed_and_shared_out(tmp_path, capsys):
    plan, output = tmp_path / "plan.jsonl", tmp_path / "records.jsonl"
    write_jobs(plan, jobs(3, "fused"))
    words = ["--problems", str(plan), "--device", "cpu", "--resume", str(output)]
    assert main([*words, "--shard", "1/2"]) == 0
    assert len(output.read_text().splitlines()) == 2
    assert main(words) == 0
    assert "1 problems to measure, 2 already done" in capsys.readouterr().err
    assert len(output.read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "give an operator, or a file after --problems"),
        (["lstm", "--problems", "plan.jsonl"], "not both"),
        (["--problems", "/nowhere.jsonl"], "/nowhere.jsonl"),
    ],
)
def test_mistakes_of_a_list_give_one_line(capsys, words, expected):
    assert main(words) == 2
    captured = capsys.readouterr()
    assert expected in captured.err
    assert captured.err.count("\n") == 1
