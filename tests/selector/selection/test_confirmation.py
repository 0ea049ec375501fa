"""What one token sends must not flip a choice: it counts when others agree, and what does not flip counts."""

from __future__ import annotations

import random
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from kernel_selector.db import Database, records, snapshot, submissions, tokens
from kernel_selector.kernels import measure, registry
from kernel_selector.kernels.contract import GateResult, Memory, Record, Status, Timing
from kernel_selector.kernels.devices import known_device
from selector import Selector
from selector.exchange import export as transfer
from selector.profiling.run import missing
from selector.selection import shipped
from selector.selection.confirmation import unconfirmed
from selector.training.train import load_measured
from tests.selector.conftest import forget_what_ships

NOW = datetime(2026, 5, 1, tzinfo=UTC)
A, B = "torch_lstm", "hoisted"
RATES = {"copy_bytes_per_s": 4e12, "matmul_flops_per_s": {"float32": 5e13}, "launch_us": 3.0}
H200 = replace(known_device("h200"), host="a processor", **RATES)
H100 = replace(known_device("h100"), host="a processor", **RATES)
QUESTION = {"hidden": 512, "batch": 32, "device": "h200"}
FAILED = float("inf")
OWNER = None


@pytest.fixture(autouse=True)
def _looked_at_each_time(monkeypatch):
    monkeypatch.setattr("selector.selection.selector.CHECK_S", 0.0)
    monkeypatch.setattr("selector.selection.selector.BACK_OFF", 0)


@pytest.fixture
def database(tmp_path):
    """A database with tokens: those whose names begin with u are not trusted."""
    with Database.open(tmp_path / "measured.sqlite", create=True) as opened:
        with opened.write() as connection:
            for name in ("t1", "t2", "t3", "u1", "u2", "u3"):
                made = tokens.StoredToken(
                    name=name, digest=name, scopes=("measure",), created_at=NOW, trusted=name[0] == "t"
                )
                tokens.add(connection, made)
        yield opened


def record(name, ms, *, hidden=512, peak=2**20, number=0, device=H200, environment=None, **step):
    """A record; `step` may have ms of `forward`, of graphs and `slowest`, bytes `held`, and a `regime`."""
    timing = None if ms == FAILED else timed(ms)
    graphs = ("graph_forward", "graph_forward_backward")
    times = {graph: timed(step[graph]) for graph in graphs if graph in step}
    return Record(
        problem=registry.operator("lstm").problem({"hidden": hidden, "batch": 32}),
        implementation=name,
        implementation_version=registry.implementation("lstm", name).version,
        device=device,
        environment=environment or measure.current_environment(),
        policy="quick",
        status=Status.TIMEOUT if timing is None else Status.OK,
        reason="" if timing else "too slow",
        gate=GateResult(passed=True, worst_error_ratio=0.1),
        measured_at=NOW + timedelta(minutes=number),
        forward=timed(step["forward"]) if "forward" in step else timing,
        forward_backward=replace(timing, p80_ms=step["slowest"]) if "slowest" in step else timing,
        **times,
        memory=None
        if timing is None
        else Memory(
            peak_bytes=peak,
            held_bytes=step.get("held", 0),
            workspace_bytes=0,
            kept_argument_bytes=step.get("kept"),
        ),
        regime=step.get("regime", "launched"),
    )


def timed(ms):
    return Timing(p20_ms=ms, p50_ms=ms, p80_ms=ms, samples=9)


def send(database, author, found):
    with database.write() as connection:
        batch = None
        if author is not OWNER:
            batch = submissions.add(connection, author=author, received_at=NOW + timedelta(days=1))
        assert records.add(connection, found, submission=batch) == len(found)


@pytest.fixture
def ships(tmp_path, monkeypatch):
    """A function that stores records as if they came with this package."""
    path = tmp_path / "ships.sqlite"
    Database.open(path, create=True).close()
    monkeypatch.setenv("SELECTOR_SHIPPED", "on")
    monkeypatch.setattr(shipped, "unpacked", lambda: path)
    forget_what_ships()

    def store(found):
        with Database.open(path) as database:
            send(database, OWNER, found)

    yield store
    forget_what_ships()


BYTES = {"peak": 2**24}
HELD, SLOW, QUICK = {"held": 2**20}, {"graph_forward_backward": 9.0}, {"graph_forward_backward": 2.0}
NOISY = {"slowest": 60.0}  # three times the median, and more
FASTER_GRAPH = {**QUICK, "graph_forward": 0.1}
COMPILED = {"regime": "compiled"}
SAID = {
    "the owner alone": ([(OWNER, A, 10), (OWNER, B, 1)], ()),
    "one trusted token alone": ([("t1", A, 10), ("t1", B, 1)], ()),
    "a flip by one run": ([(OWNER, A, 10), (OWNER, B, 30), ("t1", B, 3)], (2,)),
    "a flip by two runs": ([(OWNER, A, 10), (OWNER, B, 30), ("t1", B, 3), ("t1", B, 3.2)], ()),
    "a flip by two authors": ([(OWNER, A, 10), (OWNER, B, 30), ("t1", B, 3), ("u1", B, 3.2)], (3,)),
    "two runs that differ": ([(OWNER, A, 10), (OWNER, B, 30), ("t1", B, 3), ("t1", B, 5)], (2, 3)),
    "a small flip": ([(OWNER, A, 10), ("t1", B, 8)], ()),
    "a flip to what nobody measured": ([(OWNER, A, 10), ("t1", B, 3)], (1,)),
    "a small flip to what is slow": ([(OWNER, A, 10), (OWNER, B, 60), ("t1", B, 9)], (2,)),
    "the best made slow": ([(OWNER, A, 10), (OWNER, B, 20), ("t1", A, 70)], (2,)),
    "the best made to fail": ([(OWNER, A, 10), (OWNER, B, 20), ("t1", A, FAILED)], (2,)),
    "what flips nothing": ([(OWNER, A, 10), (OWNER, B, 50), ("t1", B, 20), ("t1", A, 4)], ()),
    "another trusted one as the first": ([("t2", A, 10), ("t1", B, 3)], (1,)),
    "flips in small steps": (
        [
            (OWNER, A, 10),
            (OWNER, B, 12),
            (OWNER, "fused", 40),
            ("t1", A, 70),
            ("t1", B, 70),
            ("t1", "fused", 8),
        ],
        (4, 5),
    ),
    "bytes": ([(OWNER, A, 10, BYTES), (OWNER, B, 20), ("t1", A, 10, {"peak": 9})], (2,)),
    "bytes kept for backward": ([(OWNER, A, 10, HELD), (OWNER, B, 10, HELD), ("t1", B, 10)], (2,)),
    "bytes kept of arguments": (
        [(OWNER, A, 10, HELD), (OWNER, B, 10, {"kept": 2**20}), ("t1", B, 10, {"kept": 2**10})],
        (2,),
    ),
    "a graph": ([(OWNER, A, 10, QUICK), (OWNER, B, 10, SLOW), ("t1", B, 10, {**QUICK, **SLOW})], ()),
    "a graph that is faster": ([(OWNER, A, 10, SLOW), (OWNER, B, 10, SLOW), ("t1", B, 10, QUICK)], (2,)),
    "the best graph made slow": ([(OWNER, A, 10, QUICK), (OWNER, B, 10, SLOW), ("t1", A, 10, SLOW)], (2,)),
    "the forward part of a graph": (
        [
            (OWNER, A, 10, {**QUICK, "graph_forward": 1.0}),
            (OWNER, B, 10, {**QUICK, "graph_forward": 0.9}),
            ("t1", A, 10, FASTER_GRAPH),
        ],
        (2,),
    ),
    "a forward pass": (
        [(OWNER, A, 10, {"forward": 9.0}), (OWNER, B, 10), ("t1", B, 10, {"forward": 1.0})],
        (2,),
    ),
    "graphs that differ little": ([(OWNER, A, 10, SLOW), ("t1", A, 10, {"graph_forward_backward": 6.1})], ()),
    "no graph where others have one": ([(OWNER, A, 10, QUICK), (OWNER, B, 10, SLOW), ("t1", A, 10)], ()),
    "a graph by two runs": (
        [(OWNER, A, 10, SLOW), (OWNER, B, 10, SLOW), ("t1", B, 10, QUICK), ("t1", B, 10, QUICK)],
        (),
    ),
    "the best made noisy": ([(OWNER, A, 20), (OWNER, B, 10), ("t1", B, 10, NOISY)], (2,)),
    "the default made noisy": ([(OWNER, A, 20), (OWNER, B, 10), ("t1", A, 20, {"slowest": 90.0})], (2,)),
    "noise by which little is lost": ([(OWNER, A, 14), (OWNER, B, 10), ("t1", B, 10, NOISY)], ()),
    "another one made noisy": ([(OWNER, A, 20), (OWNER, B, 10), ("t1", "fused", 19, NOISY)], ()),
    "noise by two runs": (
        [(OWNER, A, 20), (OWNER, B, 10), ("t1", B, 10, NOISY), ("t1", B, 10, NOISY)],
        (),
    ),
    "noise that another run does not have": (
        [(OWNER, A, 20), (OWNER, B, 10), ("t1", B, 10, NOISY), ("t1", B, 10)],
        (2,),
    ),
    "one that is not trusted": ([("u1", A, 10), ("u1", A, 10.1)], (0, 1)),
    "two that are not": ([("u1", A, 10), ("u2", A, 11)], ()),
    "two that differ": ([("u1", A, 10), ("u2", A, 17)], (0, 1)),
    "two that fail": ([("u1", A, FAILED), ("u2", A, FAILED), ("u2", B, FAILED)], (2,)),
    "another regime by one run": (
        [(OWNER, A, 10), ("t1", A, 10, COMPILED), ("t1", B, FAILED, COMPILED)],
        (1, 2),
    ),
    "another regime by two runs": ([("t1", A, 10, COMPILED), ("t1", A, 11, COMPILED)], ()),
    "another regime by the owner": ([(OWNER, A, 10, COMPILED), ("t1", A, 11, COMPILED)], ()),
    "a flip in another regime": (
        [(OWNER, A, 10, COMPILED), (OWNER, B, 30, COMPILED), ("t1", B, 3, COMPILED), ("t1", B, 3)],
        (2,),
    ),
    "beside the owner": ([(OWNER, A, 10), ("u1", A, 10), ("u2", A, 10)], (1, 2)),
}


@pytest.mark.parametrize(("said", "waiting"), SAID.values(), ids=SAID)
def test_what_waits(database, said, waiting):
    for number, (author, name, ms, *more) in enumerate(said):
        send(database, author, [record(name, ms, number=number, **(more[0] if more else {}))])
    with database.read() as connection:
        found = unconfirmed(connection, operator="lstm", device_key=H200.key)
        key = record(A, 1).problem.key
        assert found == dict.fromkeys((number + 1 for number in waiting), key)
        assert unconfirmed(connection, operator="lstm", problem_keys=[key]) == found
        assert unconfirmed(connection, operator="lstm", problem_keys=["another"]) == {}
        assert unconfirmed(connection, operator="gru") == {}


BESIDE_WHAT_SHIPS = {  # A takes 10 ms, and B 30
    "a flip by one run": ([("t1", B, 3)], (0,)),
    "a flip by a failure": ([("t1", A, FAILED)], (0,)),
    "a flip by two runs": ([("t1", B, 3), ("t1", B, 3.2)], ()),
    "what flips nothing": ([("t1", B, 20)], ()),
    "the owner": ([(OWNER, B, 3)], ()),
    "two that are not trusted": ([("u1", B, 20), ("u2", B, 20)], (0, 1)),
    "two that are not, of what does not ship": ([("u1", "fused", 20), ("u2", "fused", 20)], ()),
}


@pytest.mark.parametrize(("said", "waiting"), BESIDE_WHAT_SHIPS.values(), ids=BESIDE_WHAT_SHIPS)
def test_what_waits_beside_what_ships(database, ships, said, waiting):
    ships([record(A, 10), record(B, 30), record(B, 1, hidden=64), record(A, 9, device=H100)])
    for number, (author, name, ms) in enumerate(said, start=1):
        send(database, author, [record(name, ms, number=number)])
    with database.read() as connection:
        key = record(A, 1).problem.key
        expected = dict.fromkeys((number + 1 for number in waiting), key)
        assert unconfirmed(connection, operator="lstm") == expected
        assert unconfirmed(connection, operator="lstm", problem_keys=[key]) == expected
        alone = unconfirmed(connection, operator="lstm", shipped=False)
        assert not alone or said[0][0] != "t1"


def test_what_waits_beside_what_ships_is_of_the_same_problem_and_device(database, ships):
    ships([record(A, 10, hidden=64), record(A, 10, device=H100)])
    send(database, "t1", [record(B, 3)])
    send(database, "u1", [record(A, 3, hidden=64, number=1)])
    with database.read() as connection:
        assert list(unconfirmed(connection, operator="lstm")) == [2]


def test_a_choice_that_rests_on_what_ships_is_flipped_by_no_single_run(database, ships):
    ships([record(A, 10), record(B, 30)])
    with closing(Selector(database)) as chooser:
        assert chooser.choose("lstm", **QUESTION).implementation == A
        send(database, "t1", [record(B, 3, number=1)])
        assert chooser.choose("lstm", **QUESTION).implementation == A
        send(database, "t1", [record(B, 3.1, number=2)])
        assert chooser.choose("lstm", **QUESTION).implementation == B


@pytest.mark.postgres
def test_what_waits_in_postgresql(postgres_url):
    with Database.open(postgres_url, create=True) as database:
        send(database, OWNER, [record(A, 10), record(B, 30)])
        send(database, "t1", [record(B, 3, number=1)])
        with database.read() as connection:
            waiting = unconfirmed(connection, operator="lstm", device_key=H200.key)
            assert list(waiting) == [3]
            where = {"operator": "lstm", "device_key": H200.key, "without": waiting}
            assert [one.total.undisturbed_ms for one in records.newest(connection, **where)] == [10, 30]
            assert len(list(records.find(connection, operator="lstm", without=waiting))) == 2


def answer(selector):
    choice = selector.choose("lstm", hidden=512, batch=32, device="h200")
    return choice.implementation, choice.time_ms


def test_trust_that_is_taken_or_given_changes_at_once_what_counts(database):
    send(database, "t1", [record(A, 10), record(B, 30)])
    selector = Selector(database)
    before, state = answer(selector), selector.snapshot
    send(database, "t2", [record(B, 4, number=1), record(B, 4.1, number=2)])
    assert answer(selector) == (B, 4.1)
    flipped = selector.snapshot

    def trust(name, trusted):
        with database.write() as connection:
            assert tokens.trust(connection, name=name, trusted=trusted) == 1

    trust("t2", trusted=False)
    assert answer(selector) == before
    assert selector.snapshot not in (state, flipped)
    choice = selector.choose("lstm", hidden=512, batch=32, device="h200")
    assert "2 measurements of this problem do not count yet" in " ".join(choice.caveats)
    trust("t2", trusted=True)
    assert (answer(selector), selector.snapshot) == ((B, 4.1), flipped)


def test_what_waits_is_measured_again_and_nothing_learns_from_it(database):
    both = ((A, 10), (B, 30))
    send(database, OWNER, [record(name, ms, hidden=64 * n) for name, ms in both for n in range(1, 12)])
    environment = replace(measure.current_environment(), driver="another")
    again = [
        record(name, ms, hidden=64, environment=environment) for name, ms in ((A, 11), ("fused", 12), (B, 2))
    ]
    send(database, "t1", again)
    dataset, _ = load_measured("lstm", database)
    assert {one.total.undisturbed_ms for one in dataset.measured} == {10, 30, 11, 12}

    here = SimpleNamespace(device=H200, environment=environment, policy=measure.QUICK)
    assert B in missing(database, here, [again[0].problem])[again[0].problem]
    send(database, "t1", [record(B, 2.1, hidden=64, environment=environment, number=1)])
    assert B not in missing(database, here, [again[0].problem])[again[0].problem]
    dataset, _ = load_measured("lstm", database)
    assert {one.total.undisturbed_ms for one in dataset.measured} == {10, 30, 11, 12, 2, 2.1}


def test_what_waits_is_not_given_on_as_the_owners(database, tmp_path):
    send(database, OWNER, [record(A, 10), record(B, 30)])
    send(database, "u1", [record(B, 1, number=1), record(B, 1, hidden=1024)])
    assert transfer.waiting(database) == transfer.waiting(database, "lstm") == 2
    assert transfer.waiting(database, "gru") == 0
    assert transfer.export(tmp_path / "all.jsonl", database) == 2
    with Database.open(tmp_path / "other.sqlite", create=True) as other:
        expected = {"new": {"lstm": 2}, "known": {}, "repeated": {}, "waiting": {"lstm": 2}}
        assert transfer.diff(database, other).to_dict() == expected
        assert transfer.merge(database, other).to_dict() == expected
        with other.read() as connection:
            assert sorted(one.implementation for one in records.find(connection)) == sorted((A, B))
            assert not unconfirmed(connection, operator="lstm")
    send(database, "u2", [record(B, 1.1, hidden=1024)])  # a second author agrees
    assert transfer.waiting(database) == 1
    assert transfer.export(tmp_path / "all.jsonl", database) == 4


def test_rates_of_a_device_are_those_of_whom_is_trusted(database):
    slow = replace(H200, launch_us=9.0)
    send(database, "t1", [record(A, 10)])
    send(database, "u1", [record(A, 10, device=slow, number=1)])
    other = replace(H200, name="NVIDIA X1")
    send(database, "u1", [record(A, 10, device=other)])
    with database.read() as connection:
        assert records.devices(connection) == [H200]
    send(database, "u2", [record(A, 11, device=other)])
    with database.read() as connection:
        assert records.devices(connection) == [H200, other]


def test_who_is_not_trusted_and_sent_nothing_changes_no_snapshot(database):
    send(database, "t1", [record(A, 10)])
    with database.write() as connection:
        before = snapshot(connection)
        tokens.trust(connection, name="t2", trusted=False)
        assert snapshot(connection) == before
        tokens.trust(connection, name="t1", trusted=False)
        assert snapshot(connection) != before


def test_a_thousand_poisoned_records_among_a_thousand_honest_ones_change_no_choice(database):
    """Of one token that is not trusted and knows all times, past a review that lets everything through."""
    draw, names = random.Random(7), (A, B, "fused", "fused_graph", "recompute")
    sizes = [16 * (n + 1) for n in range(200)]
    times = {(size, name): draw.uniform(1, 40) for size in sizes for name in names}
    for number, author in enumerate(("t1", "t2", "t3")):
        mine = [
            record(name, ms, hidden=size) for (size, name), ms in times.items() if size % 48 // 16 == number
        ]
        send(database, author, mine)

    selector = Selector(database)

    def choices():
        found = []
        for size in sizes:
            for objective in ("time", "memory"):
                asked = {"hidden": size, "batch": 32, "device": "h200", "objective": objective}
                choice = selector.choose("lstm", **asked)
                found.append((choice.implementation, choice.time_ms, choice.memory_bytes))
        return found

    before = choices()
    poison = []
    for number, ((size, name), ms) in enumerate(times.items(), start=1):
        best = min(times[size, other] for other in names)
        false_ms = draw.choice((0.99 * best, ms / 7.9, ms * 7.9, best / 60, FAILED))
        poison.append(record(name, false_ms, hidden=size, number=number, peak=draw.choice((1, 2**20, 2**30))))
    assert len(poison) == len(times) == 1000
    send(database, "u1", poison)
    assert choices() == before
    assert len({choice[0] for choice in before}) > 3
    with database.write() as connection:
        tokens.trust(connection, name="u1", trusted=True)
    assert choices() != before  # it is trust that holds them back


@pytest.mark.parametrize("author", ["u1", "t1"])
def test_who_is_not_trusted_is_not_believed_about_a_device_that_ships(database, ships, author):
    ships([record(A, 10), record(B, 1)])
    slow = replace(H200, launch_us=150.0, memory_bytes=H200.memory_bytes - 2**30)
    send(database, author, [record(A, 10, hidden=256, device=slow)])
    with closing(Selector(database, shipped=True)) as selector:
        believed = selector.device("h200")
    expected = slow if author == "t1" else H200
    assert (believed.launch_us, believed.memory_bytes) == (expected.launch_us, expected.memory_bytes)


def test_how_much_an_untrusted_token_sends_of_a_gpu_decides_for_no_other(database):
    """Of GPUs unlike the asked one that answers of which the most was measured: of it, what counts."""
    question = {**QUESTION, "device": "nvidia-l4"}
    mine = [record(name, ms, hidden=hidden) for hidden in (512, 1024) for name, ms in ((A, 1.0), (B, 2.0))]
    mine += [record(name, ms, device=H100) for name, ms in ((A, 2.0), (B, 1.0))]
    lie = [
        record(name, ms, hidden=hidden, device=H100)
        for hidden in range(576, 1088, 64)
        for name, ms in ((A, 2.0), (B, 1.0))
    ]
    send(database, "t1", mine)
    selector = Selector(database, shipped=False)
    before = selector.choose("lstm", **question)
    send(database, "u1", lie)
    after = selector.choose("lstm", **question)
    assert before.implementation == A
    assert (after.implementation, after.candidates) == (before.implementation, before.candidates)


def test_a_kind_of_device_is_known_by_two_authors_who_are_not_trusted(database):
    new = replace(H200, name="NVIDIA Z1")

    def listed():
        selector = Selector(database, shipped=False)
        return {one["key"] for one in selector.devices() if one["measured"]}

    send(database, "u1", [record(A, 1.0, device=new), record(B, 2.0, device=new)])
    assert listed() == set()
    send(database, "u2", [record(A, 1.1, device=replace(new, host="another"))])
    assert listed() == {new.key}
    send(database, "t1", [record(A, 1.0, device=H100)])
    assert listed() == {new.key, H100.key}
