"""Records come back exactly, once each, by every filter; on SQLite and PostgreSQL."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernel_selector.db import DatabaseReadOnly, records, snapshot
from kernel_selector.kernels.contract import (
    CorruptRecord,
    Device,
    Environment,
    GateResult,
    Memory,
    Problem,
    Record,
    Status,
    Timing,
)

VERSIONS = ("python", "torch", "triton", "cuda", "cudnn", "driver", "system")
TEXT = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=12)
WORD = st.text("abcdefgh_0123456789", min_size=1, max_size=8)
NUMBER = st.floats(min_value=0, allow_nan=False, allow_infinity=False)
SIZE = st.integers(0, 2**63 - 1)


@st.composite
def timings(draw: st.DrawFn) -> Timing:
    percentiles = sorted(draw(st.lists(st.floats(1e-9, 1e9), min_size=3, max_size=3)))
    raw_ms = draw(st.lists(st.floats(1e-9, 1e9), max_size=4))
    return Timing(
        p20_ms=percentiles[0],
        p50_ms=percentiles[1],
        p80_ms=percentiles[2],
        samples=draw(st.integers(1, 2**40)),
        raw_ms=tuple(raw_ms),
    )


DEVICES = st.builds(
    Device,
    name=TEXT,
    kind=st.sampled_from(["cpu", "cuda"]),
    vendor=TEXT,
    host=TEXT,
    compute_capability=st.none() | st.tuples(st.integers(1, 20), st.integers(0, 9)),
    multiprocessors=st.none() | SIZE,
    memory_bytes=st.none() | SIZE,
    l2_bytes=st.none() | SIZE,
    shared_bytes_per_multiprocessor=st.none() | SIZE,
    copy_bytes_per_s=st.none() | NUMBER | st.integers(0, 2**53),
    matmul_flops_per_s=st.dictionaries(WORD, NUMBER, max_size=3),
    launch_us=st.none() | NUMBER,
    barrier_us=st.none() | NUMBER,
)
ENVIRONMENTS = st.builds(
    Environment,
    python=TEXT,
    torch=TEXT,
    triton=st.none() | TEXT,
    cuda=st.none() | TEXT,
    cudnn=st.none() | TEXT,
    driver=st.none() | TEXT,
    threads=st.integers(1, 4096),
    system=TEXT,
)
# as with declared hyperparameters, a name has values of one kind
HYPERPARAMETERS = st.one_of(
    st.tuples(st.sampled_from(["hidden", "batch"]), st.integers(0, 2**62)),
    st.tuples(st.sampled_from(["bias", "causal"]), st.booleans()),
    st.tuples(st.sampled_from(["dtype", "kind"]), WORD.filter(lambda word: not word.isdigit())),
)


@st.composite
def made_records(draw: st.DrawFn) -> Record:
    hyperparameters = dict(draw(st.lists(HYPERPARAMETERS, max_size=5)))
    hyperparameters["mode"] = draw(st.sampled_from(["training", "inference"]))
    status = draw(st.sampled_from(Status))
    ok = status is Status.OK
    ratio = draw(st.floats(0, 1)) if ok else draw(st.none() | NUMBER)
    optional = timings() if ok else st.none() | timings()
    counts = dict.fromkeys(("peak_bytes", "held_bytes", "workspace_bytes"), SIZE)
    memory = st.builds(Memory, **counts, kept_argument_bytes=st.none() | SIZE)
    return Record(
        problem=Problem(draw(WORD), tuple(hyperparameters.items())),
        implementation=draw(WORD),
        implementation_version=draw(WORD),
        device=draw(DEVICES),
        environment=draw(ENVIRONMENTS),
        policy=draw(WORD),
        status=status,
        gate=GateResult(passed=ok, worst_error_ratio=ratio, detail=draw(TEXT)),
        measured_at=draw(
            st.datetimes(
                datetime(1971, 1, 1),
                datetime(2999, 1, 1),
                timezones=st.sampled_from([UTC, timezone(timedelta(hours=-9, minutes=-30))]),
            )
        ),
        reason="" if ok else draw(TEXT.filter(bool)),
        forward=draw(optional),
        forward_backward=draw(optional),
        graph_forward=draw(st.none() | timings()),
        graph_forward_backward=draw(st.none() | timings()),
        memory=draw(memory if ok else st.none() | memory),
        seed=draw(st.integers(-(2**62), 2**62)),
    )


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(record=made_records())
def test_a_record_comes_back_exactly(database, record):
    with database.write() as connection:
        before = list(records.find(connection))
        records.add(connection, [record])
        after = list(records.find(connection))
        assert records.add(connection, after) == 0
    (found,) = after[len(before) :] or [known for known in before if known == record]
    assert found == record
    assert found.problem.values == record.problem.values  # their order as well


def test_records_of_before_there_were_regimes_have_the_content_hashes_that_they_had(make_record):
    hashes = "92e3016f9b0fa1847848a980bcec8083", "9e1e74c3cfdd3a40f951efccd1864765"
    assert records.hash_of(make_record(3)) == records.hash_of(make_record(3, regime="launched")) == hashes[0]
    assert records.hash_of(make_record(3, gate_revision=4)) == hashes[1]
    assert records.hash_of(make_record(3, regime="compiled")) not in hashes


def test_adding_twice_adds_once(database, make_record):
    made = [make_record(number) for number in range(5)]
    with database.write() as connection:
        assert records.add(connection, [*made, made[0]]) == 5
        assert records.add(connection, (record for record in made)) == 0
        assert records.add(connection, [Record.from_json(made[0].to_json()), make_record(5)]) == 1
        assert records.add(connection, []) == 0
        assert records.total(connection) == 6
        assert list(records.find(connection)) == [*made, make_record(5)]


def test_more_records_than_one_batch_and_page(database, make_record):
    made = [make_record(number % 1200, seed=number) for number in range(2500)]
    with database.write() as connection:
        assert records.add(connection, iter(made)) == 2500
    with database.read() as connection:
        assert list(records.find(connection)) == made


@pytest.mark.parametrize(
    "change",
    [
        {"reason": "x"},
        {"seed": 1},
        {"gate_revision": 2},
        {"regime": "compiled"},
        {"policy": "thorough"},
        {"implementation_version": "other"},
        {"measured_at": datetime(2026, 1, 2, 3, 4, 5, 678902, tzinfo=UTC)},
        {"gate": GateResult(passed=True, worst_error_ratio=0.5)},
        {"memory": Memory(peak_bytes=4, held_bytes=2, workspace_bytes=0)},
        {"graph_forward": Timing(p20_ms=1, p50_ms=1, p80_ms=1, samples=1)},
    ],
)
def test_records_that_differ_at_all_are_both_kept(sqlite_database, make_record, change):
    with sqlite_database.write() as connection:
        assert records.add(connection, [make_record(), make_record(**change)]) == 2


def test_another_probe_of_a_device_is_another_device_row_but_listed_once(database, make_record):
    first = make_record().device
    second = replace(first, launch_us=1.5)
    with database.write() as connection:
        records.add(connection, [make_record(0, device=first), make_record(1, device=second)])
        assert [record.device for record in records.find(connection)] == [first, second]
        assert records.devices(connection) == [second]


@pytest.mark.parametrize("busy_at", [0, 1, 2])
def test_a_probe_of_a_busy_machine_does_not_change_the_rates(database, make_record, busy_at):
    quiet = replace(make_record().device, barrier_us=1.0)
    busy = replace(
        quiet,
        copy_bytes_per_s=quiet.copy_bytes_per_s / 5,
        matmul_flops_per_s={dtype: rate / 5 for dtype, rate in quiet.matmul_flops_per_s.items()},
        launch_us=quiet.launch_us * 5,
        barrier_us=5.0,
    )
    for count in (2, 3):
        probes = [replace(quiet, vendor=f"{number}") for number in range(count)]
        probes[min(busy_at, count - 1)] = busy
        with database.write() as connection:
            records.add(connection, [make_record(count, device=one, seed=n) for n, one in enumerate(probes)])
            (found,) = records.devices(connection)
        assert replace(found, vendor=quiet.vendor) == quiet


def test_what_one_probe_alone_says_of_a_device_is_kept(database, make_record):
    full = make_record().device
    bare = replace(full, copy_bytes_per_s=None, matmul_flops_per_s={"float16": 7e14}, launch_us=None)
    with database.write() as connection:
        records.add(connection, [make_record(0, device=full), make_record(1, device=bare)])
        (found,) = records.devices(connection)
    assert found == replace(full, matmul_flops_per_s={**full.matmul_flops_per_s, "float16": 7e14})


def test_find_filters(database, make_record):
    cpu = replace(make_record().device, name="A processor", kind="cpu")
    failed = make_record(1, status=Status.CRASHED, reason="signal 11", device=cpu)
    gru = make_record(2, problem=Problem("gru", (("mode", "training"),)))
    made = [make_record(0), failed, gru]
    with database.write() as connection:
        records.add(connection, made)

        def find(**filters):
            return list(records.find(connection, **filters))

        assert find(operator="gru") == [gru]
        assert find(operator="lstm") == [made[0], failed]
        assert find(device_key="a-processor") == [failed]
        assert find(statuses=[Status.CRASHED, "timeout"]) == [failed]
        assert find(statuses=[]) == []
        assert find(operator="lstm", device_key="nvidia-h200", statuses={Status.OK}) == [made[0]]
        assert find(limit=2) == [failed, gru]
        assert find(operator="lstm", limit=1) == [failed]
        assert find(operator="no such") == []
        with pytest.raises(ValueError, match="oka"):
            find(statuses=["oka"])


def test_finished_is_of_this_device_environment_and_policy(database, make_record):
    record = make_record(0)
    crashed = make_record(1, status=Status.CRASHED, reason="signal 11")
    with database.write() as connection:
        records.add(connection, [record, crashed, make_record(2, policy="thorough")])
    asked = {
        "operator": "lstm",
        "device": replace(record.device, launch_us=None),  # measured rates do not matter
        "environment": record.environment,
        "policy": "quick",
    }
    with database.read() as connection:
        assert records.finished(connection, **asked) == {
            (item.problem.key, item.implementation, item.implementation_version, "launched")
            for item in (record, crashed)
        }
        assert records.finished(connection, **asked, problem_key=record.problem.key) == {
            (item.problem.key, item.implementation, item.implementation_version, "launched")
            for item in (record, crashed)
            if item.problem == record.problem
        }
        for other in (
            {"problem_key": "lstm of another size"},
            {"operator": "gru"},
            {"device": replace(record.device, host="another")},
            {"environment": replace(record.environment, torch="3.0")},
            {"policy": "other"},
        ):
            assert records.finished(connection, **asked | other) == set()


def test_counts_and_total(database, make_record):
    late = datetime(2027, 1, 1, tzinfo=UTC)
    made = [
        make_record(0),
        make_record(1, measured_at=late),
        make_record(2, status=Status.TIMEOUT, reason="60 s"),
    ]
    with database.write() as connection:
        records.add(connection, made)
        group = {"operator": "lstm", "device": "NVIDIA H200", "device_key": "nvidia-h200"}
        assert records.counts(connection) == [
            {**group, "status": "ok", "count": 2, "last_measured_at": late},
            {**group, "status": "timeout", "count": 1, "last_measured_at": made[2].measured_at},
        ]
        assert records.total(connection) == 3


def test_an_empty_database(database):
    with database.read() as connection:
        assert list(records.find(connection)) == []
        assert records.counts(connection) == []
        assert records.devices(connection) == []
        assert records.total(connection) == 0
        assert len(snapshot(connection)) == 12


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"device": Device(name="a", kind="cpu", launch_us=float("nan"))}, "launch_us = nan"),
        (
            {"device": Device(name="a", kind="cpu", matmul_flops_per_s={"float32": float("inf")})},
            "float32 = inf",
        ),
        ({"reason": "a\0b"}, r"reason = 'a.x00b'"),
        ({"reason": "\ud800"}, r"reason = '.ud800'"),
        ({"seed": 2**64}, "18446744073709551616"),
        ({"seed": 10**5000}, r"5001 digits"),
        ({"device": Device(name="a", kind="cpu", memory_bytes=2**63)}, "memory_bytes=9223372036854775808"),
        ({"environment": Environment(**dict.fromkeys(VERSIONS, "1"), threads=2**63)}, "threads=92233720368"),
        ({"memory": Memory(peak_bytes=2**63, held_bytes=0, workspace_bytes=0)}, "peak_bytes"),
        ({"problem": Problem("lstm", (("hidden", -5), ("mode", "training")))}, "hidden'=-5"),
        ({"problem": Problem("lstm", (("hidden", "512"), ("mode", "training")))}, "hidden'='512'"),
        ({"problem": Problem("lstm", (("hidden", -1.5), ("mode", "training")))}, "hidden'=-1.5"),
        ({"problem": Problem("ls\0tm", (("mode", "training"),))}, "NUL"),
    ],
)
def test_what_no_database_can_hold_is_refused_whole(database, make_record, change, named):
    bad = make_record(1, **{"status": Status.INCORRECT, "reason": "wrong"} | change)
    with pytest.raises(CorruptRecord, match=named), database.write() as connection:
        records.add(connection, [make_record(0), bad])
    with database.read() as connection:
        assert records.total(connection) == 0


def test_adding_needs_a_write_transaction(database, make_record):
    with pytest.raises(DatabaseReadOnly, match=r"Database\.write"), database.read() as connection:
        records.add(connection, [make_record()])


def test_an_exception_undoes_the_transaction(database, make_record):
    def interrupted():
        yield from (make_record(number) for number in range(1500))  # more than a batch
        raise KeyError

    with pytest.raises(KeyError), database.write() as connection:
        records.add(connection, interrupted())
    with database.read() as connection:
        assert records.total(connection) == 0
