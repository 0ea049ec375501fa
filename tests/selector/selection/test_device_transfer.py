"""What was measured on one GPU, carried over to another by the rates of both."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kernel_selector.db import Database, records
from kernel_selector.kernels import devices, registry
from kernel_selector.kernels.contract import Device, Problem, Record, Status, Work
from selector import Selector
from selector.cost_model.estimate import Estimate, Tier
from selector.cost_model.least_times import least_ms
from selector.selection import transfer
from selector.selection.host_shares import HostShares
from tests.selector import replay

LSTM = registry.operator("lstm")
MEASURED = replay.recorded(device_kind="cuda")
ORIGIN = MEASURED[0].device
RATES = {dtype: rate / 3 for dtype, rate in ORIGIN.matmul_flops_per_s.items()}
SLOWER = replace(
    ORIGIN,
    name="Slower GPU",
    host="",
    copy_bytes_per_s=(ORIGIN.copy_bytes_per_s or 0) / 3,
    matmul_flops_per_s=RATES,
)


@pytest.fixture(scope="module")
def selector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Selector]:
    """Of the recorded measurements of a GPU."""
    path: Path = tmp_path_factory.mktemp("transfer") / "measurements.sqlite"
    with Database.open(path, create=True) as database, database.write() as connection:
        records.add(connection, MEASURED)
    found = Selector(path)
    yield found
    found.close()


def of_problem() -> Record:
    """A good record of the default."""
    return next(one for one in MEASURED if one.status is Status.OK and one.implementation == LSTM.default)


def ask(selector: Selector, device: Device, **more: object) -> object:
    """The choice for the problem of `of_problem` on a device."""
    return selector.choose(device=device, **{**of_problem().problem.as_dict, **more})


def test_times_are_carried_over_by_the_rates(selector: Selector) -> None:
    there, here = ask(selector, replace(ORIGIN, host="")), ask(selector, SLOWER)
    assert (there.source, here.source) == ("exact", "transfer")
    assert here.implementation == there.implementation
    theirs = {one.name: one for one in there.candidates if one.source == "exact"}
    mine = {one.name: one for one in here.candidates if one.source == "transfer"}
    assert theirs.keys() <= mine.keys()
    for name, one in theirs.items():
        assert one.time_ms <= mine[name].time_ms <= 3.01 * one.time_ms
        assert mine[name].memory_bytes == one.memory_bytes
        low, high = mine[name].time_interval_ms
        assert high / low > one.time_interval_ms[1] / one.time_interval_ms[0] * 1.3
    assert any(mine[name].time_ms > 1.01 * one.time_ms for name, one in theirs.items())
    assert any(f"Carried over from {ORIGIN.name}" in caveat for caveat in here.caveats)


def work(ms: float) -> Work:
    """What takes that long on ORIGIN by its operations, and by its bytes."""
    return Work(
        flops=ms * 1e-3 * ORIGIN.matmul_flops_per_s["float32"],
        moved_bytes=ms * 1e-3 * (ORIGIN.copy_bytes_per_s or 0),
        saved_bytes=0,
        launches=1,
        steps=1,
    )


BETWEEN = transfer.Between(SLOWER, ORIGIN, "float32")


@pytest.mark.parametrize(
    ("time_ms", "host_ms", "busy_ms", "ratio"),
    [
        (1.0, 0.0, 2.0, 3.0),  # faster than large ones are
        (1.0, 0.0, 0.0, 3.0),  # by the arithmetic
        (1.0, 1.0, 0.01, 1.0),  # all of it is the host's
        (1.0, 1.0, 0.5, 1.8),  # and it still is on the device that is slower, or not any more
        (0.0, 0.0, 1.0, 1.0),
    ],
)
def test_a_time_is_carried_over_by_its_shares(
    time_ms: float, host_ms: float, busy_ms: float, ratio: float
) -> None:
    assert BETWEEN.ratio(time_ms, host_ms, work(busy_ms)) == pytest.approx(ratio, rel=0.01)


LOOP = Work(  # 1 ms by its bytes, of which a step moves what an L2 cache holds
    flops=0, moved_bytes=1e-3 * (ORIGIN.copy_bytes_per_s or 0), saved_bytes=0, launches=1, steps=1000
)
SLOWER_MEMORY = replace(ORIGIN, name="Slower memory", copy_bytes_per_s=SLOWER.copy_bytes_per_s)


@pytest.mark.parametrize(
    ("steps", "l2_bytes", "ratio"),
    [
        (1000, ORIGIN.l2_bytes, 1.0),  # the memory moves what the first step needs
        (1, ORIGIN.l2_bytes, 3.0),  # what nothing reads again
        (0, ORIGIN.l2_bytes, 3.0),
        (1000, 1000, 3.0),  # a step does not fit
        (1000, None, 3.0),  # nobody knows whether it does
    ],
)
def test_what_both_caches_hold_from_step_to_step_does_not_go_by_the_memory(
    steps: int, l2_bytes: int | None, ratio: float
) -> None:
    device, looped = replace(SLOWER_MEMORY, l2_bytes=l2_bytes), replace(LOOP, steps=steps)
    for one, other, expected in ((device, ORIGIN, ratio), (ORIGIN, device, 1 / ratio)):
        time_ms = 1.0 if one is device else ratio
        found = transfer.Between(one, other, "float32").ratio(time_ms, 0.0, looped)
        assert found == pytest.approx(expected, rel=0.01)


ALIKE = replace(ORIGIN, name="The same GPU", host="")
PROBLEMS = list(dict.fromkeys(one.problem for one in MEASURED if one.problem.operator == LSTM.name))
ACTIVATIONS = [registry.operator("gelu").problem(elements=1024 * size) for size in range(1, 25)]


def seen(problem: Problem, time: float, name: str = LSTM.default, *, of_host: bool = True) -> transfer.Seen:
    """A measurement whose time has this logarithm over what was carried over."""
    return transfer.Seen(problem, name, of_host=of_host, time=time, bytes=0.0)


def corrected(*every: transfer.Seen) -> transfer.Corrections:
    """Corrections of LSTMs."""
    return transfer.Corrections(every, LSTM.name, ALIKE, ORIGIN)


def predicted(*times_ms: float, source: str = "model") -> tuple[Tier, list[float]]:
    """A tier of as many implementations, and the milliseconds that these take at least on ORIGIN."""
    problem = of_problem().problem
    known = sorted(registry.implementations(LSTM.name).items())[: len(times_ms)]
    least = [least_ms(one.work(problem), ORIGIN) for _, one in known]
    estimates = {
        name: Estimate(
            time_ms=share * ms,
            low_ms=share * ms / 2,
            high_ms=share * ms * 2,
            memory_bytes=0,
            low_bytes=0,
            high_bytes=0,
            noise=0.0,
            memory_noise=0.0,
        )
        for (name, _), share, ms in zip(known, times_ms, least, strict=True)
    }
    return Tier(source, estimates), least


@pytest.mark.parametrize(
    ("source", "shares", "expected"),
    [
        ("model", (2.0, 3.0, 4.0), (2.0, 3.0, 4.0)),
        ("model", (0.5, 3.0, 4.0), (1.0, 3.0, 4.0)),  # one alone is too short
        ("extrapolated", (0.5, 0.25, 3.0), (1.0, 1.0, 6.0)),  # most are: errors have much in common
        ("near", (0.5, 0.5, 0.5), (1.0, 1.0, 1.0)),
        ("exact", (0.5, 0.25, 3.0), (0.5, 0.25, 3.0)),  # measured, whatever is counted
        ("model", (0.0, 3.0, 4.0), (0.0, 3.0, 4.0)),  # no figure at all
    ],
)
def test_nothing_is_foretold_to_take_less_than_its_bytes_and_operations(
    source: str, shares: tuple[float, ...], expected: tuple[float, ...]
) -> None:
    tier, least = predicted(*shares, source=source)
    nothing = corrected()
    found = transfer.carried(tier, of_problem().problem, ALIKE, ORIGIN, HostShares([]), nothing)
    for one, ms, share in zip(found.estimates.values(), least, expected, strict=True):
        assert one.time_ms == pytest.approx(share * ms)
        assert one.low_ms == pytest.approx(one.time_ms / 2 / nothing.doubt.wider)
        assert one.high_ms == pytest.approx(one.time_ms * 2 * nothing.doubt.wider)


def test_a_product_takes_at_least_what_the_highest_rate_allows() -> None:
    """Recurrent layers in float32 go faster than other products of float32."""
    fast = replace(ORIGIN, matmul_flops_per_s={"float32": 1e12, "bfloat16": 1e13})
    of_products = Work(flops=1e10, moved_bytes=8, saved_bytes=0, launches=1, steps=1)
    assert least_ms(of_products, fast) == pytest.approx(1.0)
    assert least_ms(LOOP, replace(ORIGIN, l2_bytes=None)) == pytest.approx(1.0)


def test_the_host_takes_as_long_as_this_one_does() -> None:
    origin = replace(ORIGIN, launch_us=5.0)
    here = transfer.Between(replace(SLOWER, host="This host", launch_us=10.0), origin, "float32")
    assert here.ratio(1.0, 1.0, work(0.01)) == pytest.approx(2.0)
    assert transfer.Between(SLOWER, origin, "float32").ratio(1.0, 1.0, work(0.01)) == pytest.approx(1.0)


def test_the_host_takes_no_longer_than_the_least_with_as_many_launches(selector: Selector) -> None:
    evidence = selector.evidence(LSTM.name, ORIGIN.key)
    known, found = registry.implementations(LSTM.name), 0
    for one in MEASURED:
        if one.status is Status.OK and one.total is not None and one.problem.operator == LSTM.name:
            launches = known[one.implementation].work(one.problem).launches
            share_ms = evidence.host_shares.ms(one.implementation, one.problem["mode"], launches)
            assert 0 < share_ms <= one.total.undisturbed_ms
            found += 1
    assert found
    assert evidence.host_shares.ms(LSTM.default, "training", 1e12) == 0.0


def test_another_capability_is_wider_and_switches_for_a_larger_gain(selector: Selector) -> None:
    older = replace(SLOWER, compute_capability=(8, 9))
    alike, other = ask(selector, SLOWER), ask(selector, older)
    assert (alike.source, other.source) == ("transfer", "transfer")
    times = {one.name: one for one in other.candidates if one.time_ms is not None}
    for one in alike.candidates:
        if one.time_ms is not None and one.name in times:
            assert times[one.name].time_ms == pytest.approx(one.time_ms)
            (low, high), (least, most) = one.time_interval_ms, times[one.name].time_interval_ms
            assert (least, most) == (pytest.approx(low / 2**0.6), pytest.approx(high * 2**0.6))
    chosen, default = times[other.implementation], times[LSTM.default]
    assert other.implementation == LSTM.default or default.time_ms > 1.25 * chosen.time_ms


def test_the_same_capability_goes_before_nearer_memory() -> None:
    other = replace(
        ORIGIN, name="Older GPU", compute_capability=(8, 0), copy_bytes_per_s=SLOWER.copy_bytes_per_s
    )
    assert [one.name for one in transfer.alike(SLOWER, [other, ORIGIN])] == [ORIGIN.name, "Older GPU"]


@pytest.mark.parametrize(
    "device",
    [replace(SLOWER, copy_bytes_per_s=None), replace(SLOWER, matmul_flops_per_s={})],
    ids=["no rate of the memory", "no rates of products"],
)
def test_nothing_is_carried_over_without_rates(selector: Selector, device: Device) -> None:
    assert ask(selector, device).source == "default"


def test_every_gpu_that_is_known_by_name_gets_a_figure(selector: Selector) -> None:
    """Of the default too, by its data sheet where nobody measured it."""
    for device in devices.known_devices().values():
        choice = ask(selector, device)
        default = next(one for one in choice.candidates if one.default)
        assert choice.time_ms is not None, device.name
        assert default.time_interval_ms is not None, device.name


def test_a_dtype_whose_rate_is_unknown_takes_that_of_another(selector: Selector) -> None:
    known = min(RATES)
    dtypes = {one.problem["dtype"] for one in MEASURED if one.status is Status.OK}
    one_rate = replace(SLOWER, matmul_flops_per_s={known: RATES[known]})
    for dtype in sorted(dtypes):
        record = next(one for one in MEASURED if one.status is Status.OK and one.problem["dtype"] == dtype)
        choice = selector.choose(device=one_rate, **record.problem.as_dict)
        assert choice.source == "transfer"


@pytest.mark.parametrize(("count", "source"), [(None, "exact"), (1, "transfer")])
def test_what_was_measured_on_the_device_itself_goes_first_where_it_can_be_compared(
    tmp_path: Path, count: int | None, source: str
) -> None:
    path, problem = tmp_path / "both.sqlite", of_problem().problem
    there = [of_problem(), *(one for one in MEASURED if one.problem == problem and one.status is Status.OK)]
    with Database.open(path, create=True) as database, database.write() as connection:
        records.add(connection, [*MEASURED, *(replace(one, device=SLOWER) for one in there[:count])])
    selector = Selector(path)
    assert ask(selector, SLOWER).source == source
    selector.close()


def test_of_several_the_one_with_the_nearest_memory_answers() -> None:
    like = [
        replace(ORIGIN, name=f"GPU {share}", copy_bytes_per_s=(SLOWER.copy_bytes_per_s or 0) * share)
        for share in (4.0, 0.9, 2.0)
    ]
    assert [one.name for one in transfer.alike(SLOWER, like)] == ["GPU 0.9", "GPU 2.0", "GPU 4.0"]
    assert transfer.alike(SLOWER, [SLOWER]) == []


def test_an_operator_that_was_not_measured_is_corrected_by_the_others() -> None:
    others = [seen(problem, 0.3, "torch_gelu") for problem in ACTIVATIONS]
    found = corrected(*others)
    assert math.log(found.ratio(LSTM.default, (0.0, 1.0))) == pytest.approx(0.3 * 24 / 26)  # the host's
    assert found.ratio(LSTM.default, (1.0, 0.0)) == 1.0  # the device's, of which nothing was seen
    assert found.count == len(others)
    assert found.doubt.wider == pytest.approx(transfer.SAME_CAPABILITY.wider)
    assert found.doubt.least_gain == pytest.approx(transfer.SAME_CAPABILITY.least_gain)


def test_an_operator_is_drawn_towards_all_and_an_implementation_towards_its_operator() -> None:
    """As far as a mean is by six further measurements."""
    own = [seen(problem, 0.8) for problem in PROBLEMS[:3]]
    of_all = 0.0  # the median, of which the most are
    found = corrected(*own, *(seen(problem, of_all, "torch_gelu") for problem in ACTIVATIONS))
    of_operator = 0.8 * 3 / 9
    of_default = of_operator + (0.8 - of_operator) * 3 / 9
    assert math.log(found.ratio(LSTM.default, (0.0, 1.0))) == pytest.approx(of_default)
    assert math.log(found.ratio("another", (0.0, 1.0))) == pytest.approx(of_operator)


@pytest.mark.parametrize(("apart", "least_gain"), [(0.0, 0.05), (0.4, 0.22)])
def test_a_switch_has_to_gain_what_differs_within_problems_alone(apart: float, least_gain: float) -> None:
    names = LSTM.default, "persistent"
    every = [
        seen(problem, (-1) ** place * 0.7 + apart * (name == "persistent") * (-1) ** (place // 2), name)
        for place, problem in enumerate(PROBLEMS[:12])
        for name in names
    ]
    found = corrected(*every)
    assert found.doubt.wider > 2.0  # all times of a problem are longer, or shorter
    assert found.doubt.least_gain == pytest.approx(least_gain, abs=0.05 * apart)
