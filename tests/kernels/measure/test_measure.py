import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import (
    MeasurementFailed,
    Record,
    Status,
    UnknownDevice,
    UnknownImplementation,
)
from kernel_selector.kernels.measure import (
    QUICK,
    Session,
    current_environment,
    default_torch_device,
    identify,
    probe,
)
from kernel_selector.kernels.measure import child as child_module
from kernel_selector.kernels.measure.outcomes import failure


@pytest.fixture(scope="module")
def session():
    with Session("cpu") as session:
        yield session


def problem(**hyperparameters):
    return registry.operator("lstm").problem({"hidden": 8, "batch": 2, "seq": 3, **hyperparameters})


def test_every_implementation_gives_a_good_record(session):
    records = {record.implementation: record for record in session.measure(problem())}
    assert records.keys() == registry.implementations("lstm").keys()
    accepted, refused = registry.candidates(problem(), session.device)
    assert {name: records[name].reason for name in refused} == refused
    for name in (found.name for found in accepted):
        record = records[name]
        assert record.status is Status.OK, record.reason
        assert record.gate.passed
        assert record.implementation_version == registry.implementation("lstm", name).version
        assert record.device == session.device
        assert record.environment == session.environment
        assert record.policy == QUICK.name
        assert record.forward.p50_ms < record.forward_backward.p50_ms
        assert record.graph_forward is None
        assert len(record.forward.raw_ms) == record.forward.samples >= QUICK.min_samples
        assert record.memory.peak_bytes >= record.memory.held_bytes > 0
        assert Record.from_json(record.to_json()) == record


def test_inference_has_no_backward(session):
    (record,) = session.measure(problem(mode="inference"), ["torch_lstm"])
    assert record.status is Status.OK
    assert record.forward_backward is None
    assert record.total is record.forward


def test_the_child_is_kept_between_problems(session):
    list(session.measure(problem(), ["torch_lstm"]))
    kept = session._child
    list(session.measure(problem(seq=4), ["torch_lstm"]))
    assert session._child is kept


def test_a_session_that_was_started_measures_in_the_process_that_it_has():
    with Session("cpu") as session:
        session.start()
        kept = session._child
        list(session.measure(problem(), ["torch_lstm"]))
        assert session._child is kept
        assert session.seconds["starting"] > 0


def test_a_caller_that_stops_halfway_ends_the_child(session):
    records = session.measure(problem())
    while next(records).status is Status.UNSUPPORTED:  # these come first, and need no child
        pass
    records.close()
    assert session._child is None
    (record,) = session.measure(problem(), ["torch_lstm"])
    assert record.status is Status.OK


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("out of range\nat line 3", "RuntimeError: out of range"),
        ("backend='x' raised:\n\nValueError: no such dtype\nmore", "raised: ValueError: no such dtype ("),
        ("ended in a colon:", "ended in a colon: (while"),
        ("", "RuntimeError (while in the correctness gate)"),
    ],
)
def test_a_reason_has_the_words_that_say_what_failed(text, words):
    assert words in failure(RuntimeError(text), "the correctness gate")["reason"]


def test_names_are_checked_at_once(session):
    with pytest.raises(UnknownImplementation, match="torch_lstm"):
        session.measure(problem(), ["torch_lstn"])


def test_a_problem_larger_than_the_machine_is_out_of_memory(session):
    records = list(session.measure(problem(hidden=65536), ["torch_lstm", "unfused"]))
    assert [record.status for record in records] == [Status.OUT_OF_MEMORY] * 2
    assert "computing the reference" in records[0].reason


@pytest.mark.parametrize("name", ["cuda:99", "gpu", "", "h200"])
def test_an_unknown_device_lists_what_is_here(name):
    with pytest.raises(UnknownDevice, match=r"Measuring needs one of: cpu"):
        Session(name)


def test_a_child_that_cannot_start_says_why(monkeypatch):
    monkeypatch.setattr(child_module, "BOOT", "import sys; sys.exit('no luck today')")
    with Session("cpu") as session, pytest.raises(MeasurementFailed, match="no luck today"):
        list(session.measure(problem()))


def test_an_interrupted_session_starts_no_child(monkeypatch):
    monkeypatch.setattr(child_module, "BOOT", "raise AssertionError")
    with Session("cpu") as session:
        session.interrupt()
        with pytest.raises(MeasurementFailed, match="interrupted"):
            list(session.measure(problem()))


def test_an_interrupt_ends_a_child_that_is_starting(monkeypatch):
    monkeypatch.setattr(child_module, "BOOT", "import time; time.sleep(1000)")
    with Session("cpu") as session, ThreadPoolExecutor(1) as threads:
        measuring = threads.submit(lambda: list(session.measure(problem())))
        while session._child is None:
            time.sleep(0.01)
        session.interrupt()
        with pytest.raises(MeasurementFailed, match="did not start"):
            measuring.result(timeout=300)  # not the 1000 s that the child sleeps


def test_probe_of_the_cpu():
    device = probe("cpu")
    assert probe("cpu") is device
    assert device.kind == "cpu"
    assert device.name in device.host
    assert device.multiprocessors == len(os.sched_getaffinity(0))
    assert device.memory_bytes > 2**28
    assert device.memory_bytes % 2**26 == 0  # the same after the machine was started anew
    assert 1e8 < device.copy_bytes_per_s < 1e13
    assert device.matmul_flops_per_s.keys() == {"float32", "bfloat16", "float16"}
    assert 1e7 < device.matmul_flops_per_s["float32"] < 1e15
    assert 0.05 < device.launch_us < 1e4
    assert device.barrier_us is None


@pytest.mark.parametrize(("waits_s", "flops_per_s"), [(0.0, 1e9), (0.0, 1e11), (0.03, 1e11)])
def test_the_rate_of_products_is_not_that_of_waiting_for_a_core(monkeypatch, waits_s, flops_per_s):
    asked = []

    def took_s(run, _device):
        asked.append(2 * run().shape[0] ** 3)
        return max(asked[-1] / flops_per_s, waits_s)

    probe_module = sys.modules[probe.__module__]
    monkeypatch.setattr(probe_module, "_fastest_s", took_s)
    rate = probe_module._matmul_rate("cpu", "float32", largest=1024)
    assert rate == pytest.approx(min(flops_per_s, 2 * 1024**3 / waits_s) if waits_s else flops_per_s)
    assert len(asked) == {1e9: 2, 1e11: 4}[flops_per_s]  # of a slow device no longer than need be


def test_a_probe_leaves_the_draws_of_its_caller_alone(monkeypatch):
    probe_module = sys.modules[probe.__module__]
    monkeypatch.setattr(probe_module, "FILL_MS", 0.0)
    probe_module._cpu.cache_clear()
    before = torch.get_rng_state()
    probe("cpu")
    assert torch.equal(torch.get_rng_state(), before)
    probe_module._cpu.cache_clear()


def test_identity_is_that_of_the_probe_without_rates():
    device = identify("cpu")
    assert identify("cpu") is device
    assert device.fingerprint == probe("cpu").fingerprint
    rates = {"copy_bytes_per_s": None, "matmul_flops_per_s": {}, "launch_us": None}
    assert replace(probe("cpu"), **rates) == device


def test_the_number_of_threads_belongs_to_the_environment_not_to_the_device():
    before = torch.get_num_threads()
    device, environment = probe("cpu"), current_environment("cpu")
    try:
        torch.set_num_threads(before + 1)
        assert probe("cpu").fingerprint == device.fingerprint
        assert current_environment("cpu").fingerprint != environment.fingerprint
    finally:
        torch.set_num_threads(before)


def test_the_cpu_environment_does_not_depend_on_a_gpu():
    environment = current_environment("cpu")
    assert environment.torch == torch.__version__
    assert environment.threads == torch.get_num_threads()
    assert environment.driver is environment.cuda is environment.cudnn is environment.triton is None


def test_the_default_device_exists():
    assert default_torch_device() == ("cuda:0" if torch.cuda.is_available() else "cpu")
    assert current_environment() == current_environment(default_torch_device())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_a_gpu_has_graph_times_too():
    with Session("cuda:0") as session:
        (record,) = session.measure(problem(hidden=64, batch=8), ["torch_lstm"])
    assert record.status is Status.OK, record.reason
    assert 0 < record.graph_forward.p50_ms < record.forward.p50_ms * 2
    assert record.graph_forward_backward.samples >= QUICK.min_samples
    assert record.device.compute_capability >= (7, 0)
    assert record.environment.driver
