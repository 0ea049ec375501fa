import os
import signal
import subprocess
import time
from pathlib import Path

import planted
import pytest

from kernel_selector.kernels.contract import Record, Status

SMALL = ("lstm", "hidden=8", "batch=2", "seq=3")


@pytest.fixture(scope="module")
def records(tmp_path_factory) -> dict[str, Record]:
    """One run over every misbehaving candidate and the real ones; and a second problem after them."""
    folder = planted.checkout(tmp_path_factory.mktemp("planted"), *planted.BODIES)
    planted.plant(folder, "refuses", refusal="return 'not on a Saturday'")
    planted.plant(folder, "refuses_mutely", refusal="return ''")
    planted.plant(folder, "breaks_refusing", refusal="raise KeyError('no such thing')")
    run = planted.measure(folder, *SMALL, "--timeout", "5s")
    assert run.returncode == 0, run.stderr
    found = [Record.from_json(line) for line in run.stdout.splitlines()]
    assert len({record.implementation for record in found}) == len(found)
    return {record.implementation: record for record in found}


@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        ("segfault", Status.CRASHED, ["SIGSEGV", "correctness gate"]),
        ("late_abort", Status.CRASHED, ["SIGABRT", "while timing", "last words"]),
        ("hang", Status.TIMEOUT, ["no answer for 5 s", "correctness gate"]),
        ("wrong", Status.INCORRECT, ["output"]),
        ("wrong_gradient", Status.INCORRECT, ["gradient"]),
        ("raises", Status.CRASHED, ["ValueError: planted fault", "correctness gate"]),
        ("raises_noise", Status.CRASHED, [r"planted \x00 and \udcff and \x1b[31mxxx"]),
        ("exits", Status.CRASHED, ["SystemExit: 3"]),
        ("greedy", Status.OUT_OF_MEMORY, ["memory"]),
        ("late_greedy", Status.OUT_OF_MEMORY, ["memory", "timing"]),
        ("refuses_mutely", Status.UNSUPPORTED, ["no reason"]),
        ("refuses", Status.UNSUPPORTED, ["not on a Saturday"]),
        ("breaks_refusing", Status.CRASHED, ["KeyError", "no such thing"]),
    ],
)
def test_a_bad_candidate_costs_its_own_record(records, name, status, words):
    record = records[name]
    assert record.status is status, record.reason
    for word in words:
        assert word in record.reason
    for text in (record.reason, record.gate.detail):
        assert text.isprintable()
        assert len(text) < 1000
    assert record.total is None
    assert not record.gate.passed or status is not Status.INCORRECT
    assert "not a record" not in record.reason  # which another candidate printed


@pytest.mark.parametrize("name", ["torch_lstm", "unfused", "hoisted", "leaks", "prints"])
def test_the_others_are_measured(records, name):
    assert records[name].status is Status.OK, records[name].reason
    assert records[name].total.samples >= 3


def wait_for(condition, seconds=600.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)


def children(pid: int) -> list[int]:
    threads = Path(f"/proc/{pid}/task").iterdir()
    return [int(word) for thread in threads for word in (thread / "children").read_text().split()]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def hanging(tmp_path):
    """A sweep that has written its first record and hangs in the second candidate."""
    folder = planted.checkout(tmp_path / "checkout", "wrong", "hang")
    output = tmp_path / "records.jsonl"
    words = planted.command(*SMALL, "--implementations", "wrong,hang", "--output", str(output))
    with subprocess.Popen(
        words,
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # a shell's & ignores it
    ) as run:
        wait_for(lambda: output.exists() and output.read_text().endswith("\n"))
        yield run, output
        run.kill()


def test_ctrl_c_keeps_what_is_finished_and_ends_the_child(hanging):
    run, output = hanging
    (child,) = children(run.pid)
    os.killpg(run.pid, signal.SIGINT)  # as a terminal does: to the whole group
    _, errors = run.communicate(timeout=600)
    assert run.returncode == 130
    assert "Traceback" not in errors
    assert "Run the command again to go on" in errors
    assert not alive(child)
    (line,) = output.read_text().splitlines()
    assert Record.from_json(line).status is Status.INCORRECT


def test_the_child_ends_when_the_parent_is_killed(hanging):
    run, _ = hanging
    (child,) = children(run.pid)
    assert alive(child)
    run.kill()
    run.wait()
    wait_for(lambda: not alive(child), seconds=20)
