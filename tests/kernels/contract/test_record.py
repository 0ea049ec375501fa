"""Records keep their promises: gated, finite, and the same after a trip through JSON."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import (
    CorruptRecord,
    Device,
    Environment,
    GateResult,
    Memory,
    Record,
    Status,
    Timing,
)
from kernel_selector.kernels.contract.record import REGIMES

LSTM = registry.operator("lstm")
values = st.fixed_dictionaries(
    {"hidden": st.integers(1, 65536), "batch": st.integers(1, 2**20)},
    optional={
        "bias": st.booleans(),
        "dtype": st.sampled_from(["float64", "bfloat16"]),
        "mode": st.sampled_from(["training", "inference"]),
    },
)
DEVICE = Device(
    name="NVIDIA H200",
    kind="cuda",
    host="a host, 16 cores",
    compute_capability=(9, 0),
    multiprocessors=132,
    matmul_flops_per_s={"float32": 4e14},
)
ENVIRONMENT = Environment(
    python="3.12.3",
    torch="2.11.0",
    triton=None,
    cuda="13.0",
    cudnn="9.1",
    driver="580",
    threads=2,
    system="Linux",
)
PASSED = GateResult(passed=True, worst_error_ratio=0.5, detail="output[0]: fine")
TIMING = Timing(p20_ms=1.0, p50_ms=1.5, p80_ms=2.0, samples=3, raw_ms=(1.0, 1.5, 2.0))
MEMORY = Memory(peak_bytes=3, held_bytes=2, workspace_bytes=1)


def make_record(**changes):
    fields = {
        "problem": LSTM.problem(hidden=8, batch=2),
        "implementation": "hoisted",
        "implementation_version": "abc",
        "device": DEVICE,
        "environment": ENVIRONMENT,
        "policy": "quick",
        "status": Status.OK,
        "gate": PASSED,
        "measured_at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "forward": TIMING,
        "forward_backward": TIMING,
        "memory": MEMORY,
    }
    return Record(**{**fields, **changes})


positive = st.floats(1e-6, 1e9)
timings = st.lists(positive, min_size=3, max_size=3).map(
    lambda three: Timing(
        p20_ms=sorted(three)[0],
        p50_ms=sorted(three)[1],
        p80_ms=sorted(three)[2],
        samples=3,
        raw_ms=tuple(three),
    )
)
records = st.builds(
    make_record,
    problem=values.map(LSTM.problem),
    forward=timings,
    forward_backward=timings,
    graph_forward=st.none() | timings,
    memory=st.builds(
        Memory,
        peak_bytes=st.integers(0, 2**60),
        held_bytes=st.integers(0, 2**60),
        workspace_bytes=st.integers(0, 2**60),
    ),
    measured_at=st.datetimes(timezones=st.just(UTC)),
    seed=st.integers(0, 2**31),
    gate_revision=st.none() | st.integers(1, 9),
    regime=st.sampled_from(REGIMES),
    policy=st.text(),
)


@given(records)
def test_a_record_survives_json(record):
    line = record.to_json()
    assert "\n" not in line
    again = Record.from_json(line)
    assert again == record
    assert again.problem.key == record.problem.key
    assert again.device.fingerprint == record.device.fingerprint
    assert again.to_json() == line


def test_a_record_of_the_first_gate_is_written_as_before_there_were_others():
    assert "gate_revision" not in make_record().to_json()
    assert Record.from_json(make_record(gate_revision=2).to_json()).gate_revision == 2


def test_a_record_of_a_launched_layer_is_written_as_before_there_were_other_regimes():
    record = make_record(regime="launched")
    assert record == make_record()
    assert "regime" not in record.to_json()
    compiled = Record.from_json(make_record(regime="compiled").to_json())
    assert compiled.regime == "compiled"
    assert compiled.identity[:-1] == record.identity


@pytest.mark.parametrize("regime", ["eager", "", None, 3, ["compiled"]])
def test_a_regime_that_is_none_is_refused_in_words(regime):
    line = json.dumps({**json.loads(make_record().to_json()), "regime": regime})
    with pytest.raises(CorruptRecord, match=r"regime=.*: expected launched, graph, compiled\."):
        Record.from_json(line)


@pytest.mark.parametrize("gate", [None, True, {"passed": True}])
def test_no_record_without_a_gate_result(gate):
    with pytest.raises(CorruptRecord, match="gate before you measure"):
        make_record(gate=gate)
    with pytest.raises(TypeError):
        Record(**{name: value for name, value in vars(make_record()).items() if name != "gate"})


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"gate": GateResult(passed=False, worst_error_ratio=7.0)}, "without a passed gate"),
        ({"forward_backward": None}, "without times"),
        ({"memory": None}, "without memory"),
        ({"status": Status.CRASHED}, "no reason"),
        ({"measured_at": datetime(2026, 1, 1)}, "time zone"),
    ],
)
def test_a_record_that_cannot_be_true_is_refused(changes, match):
    with pytest.raises(CorruptRecord, match=match):
        make_record(**changes)


def test_the_time_that_counts_follows_the_mode():
    slow = replace(TIMING, p80_ms=9.0)
    assert make_record(forward_backward=slow).total is slow
    inference = LSTM.problem(hidden=8, batch=2, mode="inference")
    assert make_record(problem=inference, forward_backward=None).total is TIMING


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, 0.0])
def test_times_are_finite_and_positive(bad):
    for name in ("p20_ms", "p50_ms", "p80_ms"):
        with pytest.raises(CorruptRecord):
            replace(TIMING, **{name: bad})


def test_percentiles_rise_and_have_samples():
    with pytest.raises(CorruptRecord, match="rising"):
        replace(TIMING, p20_ms=1.9)
    with pytest.raises(CorruptRecord, match="at least 1"):
        replace(TIMING, samples=0)


@pytest.mark.parametrize("bad", [-1, math.nan, math.inf])
def test_bytes_are_finite_and_not_negative(bad):
    with pytest.raises(CorruptRecord, match="held_bytes"):
        replace(MEMORY, held_bytes=bad)


@pytest.mark.parametrize("ratio", [math.nan, math.inf, -0.1, 1.01, None])
def test_a_passed_gate_has_a_ratio_of_at_most_one(ratio):
    with pytest.raises(CorruptRecord):
        GateResult(passed=True, worst_error_ratio=ratio)


def test_a_failed_gate_has_a_finite_ratio_or_none():
    assert GateResult(passed=False, worst_error_ratio=7.0).worst_error_ratio == 7.0
    assert GateResult.not_reached("no memory") == GateResult(
        passed=False, worst_error_ratio=None, detail="no memory"
    )
    with pytest.raises(CorruptRecord):
        GateResult(passed=False, worst_error_ratio=math.inf)


def _edited(**changes):
    return json.dumps({**json.loads(make_record().to_json()), **changes})


BAD_LINES = {
    "not json": "{",
    "no object": "[1]",
    "empty": "",
    "another schema": _edited(schema=99),
    "nan time": make_record().to_json().replace('"p50_ms": 1.5', '"p50_ms": NaN'),
    "negative time": make_record().to_json().replace('"p20_ms": 1.0', '"p20_ms": -1.0'),
    "time as text": make_record().to_json().replace('"p20_ms": 1.0', '"p20_ms": "1"'),
    "unknown field": _edited(colour="blue"),
    "unknown status": _edited(status="fine"),
    "unknown device field": _edited(device={"name": "x", "kind": "cpu", "colour": 1}),
    "no gate": json.dumps({k: v for k, v in json.loads(make_record().to_json()).items() if k != "gate"}),
    "gate null": _edited(gate=None),
    "time without zone": _edited(measured_at="2026-01-01T00:00:00"),
    "problem null": _edited(problem=None),
}


def _changed(path, value):
    data = json.loads(make_record().to_json())
    inner = data
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    return json.dumps(data)


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (("problem", "hidden"), "512", "hidden"),
        (("problem", "hidden"), "-512", "hidden"),
        (("problem", "hidden"), -5, "hidden"),
        (("problem", "hidden"), [1.5], "hidden"),
        (("problem", "hidden"), None, "hidden"),
        (("problem", "hidden"), [8], "hidden"),
        (("problem", "bias"), "true", "bias"),
        (("problem", "operator"), 3, "operator"),
        (("problem", "operator"), None, "operator"),
        (("memory", "peak_bytes"), True, "peak_bytes"),
        (("memory", "peak_bytes"), 1.5, "peak_bytes"),
        (("memory", "held_bytes"), "3", "held_bytes"),
        (("memory", "held_bytes"), None, "held_bytes"),
        (("memory", "kept_argument_bytes"), -1, "kept_argument_bytes"),
        (("memory",), {}, "memory record|missing"),
        (("forward",), {}, "missing"),
        (("forward",), 3, "not a measurement record"),
        (("forward", "p50_ms"), True, "p50_ms"),
        (("forward", "p50_ms"), "1.5", "p50_ms"),
        (("forward", "p50_ms"), None, "p50_ms"),
        pytest.param(("forward", "p80_ms"), 10**400, "401 digits", id="beyond every float"),
        (("forward", "samples"), 3.0, "samples"),
        (("forward", "samples"), True, "samples"),
        (("forward", "raw_ms"), ["1.0"], "raw_ms"),
        (("forward", "raw_ms"), "fast", "raw_ms"),
        (("gate", "passed"), 1, "passed"),
        (("gate", "worst_error_ratio"), "0.5", "worst_error_ratio"),
        (("gate", "worst_error_ratio"), False, "worst_error_ratio"),
        (("gate", "detail"), None, "detail"),
        (("implementation",), 3, "implementation"),
        (("implementation_version",), None, "implementation_version"),
        (("policy",), ["quick"], "policy"),
        (("reason",), None, "reason"),
        (("seed",), True, "seed"),
        (("seed",), "0", "seed"),
        (("gate_revision",), 0, "gate_revision"),
        (("gate_revision",), "2", "gate_revision"),
        (("gate_revision",), True, "gate_revision"),
        (("measured_at",), 0, "not a measurement record"),
        (("device", "name"), 5, "name"),
        (("device", "memory_bytes"), "80 GB", "memory_bytes"),
        (("device", "launch_us"), True, "launch_us"),
        (("device", "matmul_flops_per_s"), {"float32": "fast"}, "float32"),
        (("environment", "threads"), "2", "threads"),
        (("environment", "torch"), None, "torch"),
    ],
)
def test_a_field_of_a_wrong_type_is_named(path, value, named):
    with pytest.raises(CorruptRecord, match=named) as caught:
        Record.from_json(_changed(path, value))
    assert type(caught.value) is CorruptRecord
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("line", [None, 3, "[" * 100_000, '{"schema": ' + "9" * 5000 + "}", "garbage" * 9999])
def test_what_is_far_from_a_record_is_one_short_error(line):
    with pytest.raises(CorruptRecord, match=r"\.$") as caught:
        Record.from_json(line)
    assert len(str(caught.value)) < 400


def test_a_record_made_by_hand_has_fields_of_the_right_type():
    for changes in ({"policy": b"quick"}, {"status": "ok"}, {"problem": "lstm"}, {"forward": {}}):
        (name,) = changes
        with pytest.raises(CorruptRecord, match=f"Record.{name}="):
            make_record(**changes)


@pytest.mark.parametrize("case", BAD_LINES)
def test_a_corrupt_line_is_one_clear_error(case):
    with pytest.raises(CorruptRecord):
        Record.from_json(BAD_LINES[case])


def test_devices_and_environments_survive_json_and_know_themselves():
    assert Device.from_dict(json.loads(json.dumps(DEVICE.to_dict()))) == DEVICE
    assert Environment.from_dict(ENVIRONMENT.to_dict()) == ENVIRONMENT
    assert DEVICE.key == "nvidia-h200"
    assert DEVICE.fingerprint == replace(DEVICE, launch_us=3.0).fingerprint
    assert DEVICE.fingerprint != replace(DEVICE, host="another").fingerprint
    newer = replace(ENVIRONMENT, torch="2.13.0")
    assert newer.fingerprint != ENVIRONMENT.fingerprint
    assert newer.differences(ENVIRONMENT) == ["torch 2.11.0 instead of 2.13.0"]
