"""Estimates carried over from a GPU that was measured to one that was not.

A time is carried over by its shares, see `Between`. What an H200 alone knows, so carried to an H100 of
another host (2,297 problems of all operators, `python -m benchmarks.selection.transfer`): choices lose 2.9 %
against the fastest, times of the device are off by 9 % (median; by 3 % where both measured the problem), and
all times, which are mostly the host's, by 14 %, or by 10 % after a calibration. Of what others measured (`...
--public`; forward, of 50 us and longer), each device foretold from the one most like it, times are off by 3 %
to a device of the same compute capability (linear layers and attention in bfloat16), and to another one by 11
to 19 % (linear layers), 18 % (attention), 15 % (products in float32), 13 % (norms) and 7 to 12 %
(activations). How good choices are on another compute capability nobody has measured, so that a switch away
from the default must gain a quarter.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from statistics import median
from types import MappingProxyType
from typing import NamedTuple

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device, Problem, Work
from kernel_selector.kernels.contract.errors import number_of

from ..cost_model.estimate import Estimate, Tier
from ..cost_model.features.roofline import matmul_rate
from ..cost_model.least_times import from_memory, no_shorter
from .evidence import OTHER_MACHINE, Evidence
from .host_shares import HostShares

SOURCE = "transfer"
PRODUCTS = 8  # operations a byte, from which on they are matrix products
START_MS = 2e-3  # of a kernel, from the end of the one before
OF_THE_DEVICE = 0.5  # a time that is longer than the host's by this share is the device's
OF_ANOTHER = (
    "Measured on another processor, {}, since nothing comparable is known of this one: "
    "`selector profile --operator all` measures it."
)


class Doubt(NamedTuple):
    """Error of a time carried over to another device, and the least gain of a switch by such times."""

    wider: float  # an interval at both ends
    least_gain: float  # of a switch away from the default


NOTHING_KNOWN: Mapping[str, float] = MappingProxyType({"": 0.0})  # a factor of 1
PRIOR = 2.0  # measurements that what was seen elsewhere counts for
# the same of factors between devices: of 494 problems measured on an H100 and an H200 what single ones say
# varies, in squares, 4 to 9 times as much as the factors of operators and of implementations, 6 in the mean
BETWEEN_DEVICES = 6.0
NINE_OF_TEN = 1.645  # standard deviations on either side
SAME_CAPABILITY = Doubt(2**0.2, 0.05)  # nine of ten times are inside
OTHER_CAPABILITY = Doubt(2**0.8, 0.25)


def alike(device: Device, measured: Iterable[Device]) -> list[Device]:
    """The measured GPUs, those of the same compute capability first, then by the speed of their memory; of a
    processor all other processors.

    There are none for a GPU whose rates are not known.
    """
    if device.kind == "cpu":
        return [one for one in measured if one.kind == "cpu" and one.key != device.key]
    found = [
        one
        for one in measured
        if one.key != device.key and one.kind == device.kind == "cuda" and _rates(one) & _rates(device)
    ]
    return sorted(
        found, key=lambda one: (not runs_the_same(one, device), abs(math.log(_copy_ratio(device, one))))
    )


def best_first(device: Device, found: Iterable[Device], counts: Mapping[str, int]) -> list[Device]:
    """Devices like one, each kind once, of which something was measured: how much, by key, is in `counts`.

    Those that run the same kernels stay in their order. Of the others, processors too, that of which the most
    was measured goes first.
    """
    kinds: dict[str, Device] = {}
    for one in found:
        kinds.setdefault(one.key, one)  # the first of several hosts
    unlike = {key for key, one in kinds.items() if not runs_the_same(device, one)}
    order = sorted(kinds, key=lambda key: (key in unlike, -counts[key] * (key in unlike)))
    return [kinds[key] for key in order if counts[key]]


def apart(device: Device, other: Device) -> tuple[bool, float, float]:
    """Distance of two devices: by kind, compute capability, and speed of their memory."""
    mine, theirs = device.compute_capability, other.compute_capability
    capability = math.inf if mine is None or theirs is None else abs(_number(mine) - _number(theirs))
    is_known = device.copy_bytes_per_s and other.copy_bytes_per_s
    speed = abs(math.log(_copy_ratio(device, other))) if is_known else math.inf
    return other.kind != device.kind, capability, speed


def _number(capability: tuple[int, int]) -> int:
    return 10 * capability[0] + capability[1]


def carried(
    tier: Tier, problem: Problem, device: Device, origin: Device, host: HostShares, seen: Corrections
) -> Tier:
    """The tier of another device as one of `device`; without estimates as it was.

    `host` are the host's shares of what was measured there, `seen` corrections by what was measured here too.
    Times of processors stay as they are: what was a little faster on one is not on another.
    """
    if not tier.estimates:
        return tier
    if origin.kind == "cpu":
        noisier = {name: one.timed(1.0, 1.0, OTHER_MACHINE) for name, one in tier.estimates.items()}
        caveats = (OF_ANOTHER.format(origin.name), *tier.caveats)
        return tier._replace(estimates=noisier, caveats=caveats, origin=origin)
    known, between = registry.implementations(problem.operator), Between(device, origin, problem["dtype"])
    is_measured, estimates = tier.source == "exact", {}
    found = tier.estimates if is_measured else no_shorter(tier.estimates, problem, origin)
    for name, estimate in found.items():
        work = known[name].work(problem)
        shares = between.shares(estimate.time_ms, host.ms(name, problem["mode"], work.launches), work)
        estimates[name] = estimate.timed(seen.ratio(name, shares), *seen.doubt)
    nothing = f"nothing comparable of {problem.operator} was measured on {device.name}"
    by = f", corrected by {number_of(seen.count, 'measurement')} here" if seen.count else ""
    words = f"Carried over from {origin.name}{by}: {nothing}."
    return tier._replace(source=SOURCE, estimates=estimates, caveats=(words, *tier.caveats), origin=origin)


def in_host(tier: Tier, problem: Problem, device: Device, evidence: Evidence) -> Tier:
    """Predictions for a GPU in another host, their tier's `origin`, as of one in the host of `device`.

    What the device takes stays, what the host takes goes by what a launch takes in both, where that is known.
    `evidence` is of the kind of GPU.
    """
    origin = tier.origin
    if origin is None:
        return tier
    if not device.host or device.launch_us in (None, origin.launch_us):
        return tier._replace(origin=None)
    host, known = evidence.host_shares_in(origin.host), registry.implementations(problem.operator)
    between = Between(replace(origin, host=device.host, launch_us=device.launch_us), origin, problem["dtype"])
    estimates = {}
    for name, one in tier.estimates.items():
        work = known[name].work(problem)
        ratio = between.ratio(one.time_ms, host.ms(name, problem["mode"], work.launches), work)
        estimates[name] = one.timed(ratio, 1.0, 0.0)
    return tier._replace(estimates=estimates, origin=None)


def runs_the_same(device: Device, other: Device) -> bool:
    """Whether the same kernels run on two GPUs; of processors nobody knows."""
    return device.kind == "cuda" and device.compute_capability == other.compute_capability


class Seen(NamedTuple):
    """A measurement of what was measured elsewhere too: logs of its time and bytes over those from there."""

    problem: Problem
    name: str
    of_host: bool  # whether the time carried over is the host's
    time: float
    bytes: float


class Corrections:
    """Factors of times of an operator that are carried over, by what was measured on both devices.

    There are factors of what the host takes and of what the device takes: of all operators, of this one, and
    of each implementation. Each is the median of what was measured here over what was carried over, drawn
    towards the one before, and the first of them towards 1. `every` are the measurements of all operators,
    `count` is their number, and `doubt` what is left of this one's. A switch compares times of one problem,
    whose errors have much in common: it has to gain what is left around their median.
    """

    def __init__(self, every: Iterable[Seen], operator: str, device: Device, origin: Device) -> None:
        every = list(every)
        own = [one for one in every if one.problem.operator == operator]
        self.count = len(every)
        self._factors = {of_host: _of_share(every, own, of_host) for of_host in (True, False)}
        before, by_problem = doubt(device, origin), defaultdict[Problem, list[float]](list)
        for one in own:
            by_problem[one.problem].append(self.left(one))
        spread = _spread(chain.from_iterable(by_problem.values()), math.log(before.wider) / NINE_OF_TEN)
        apart = (left - median(each) for each in by_problem.values() if len(each) > 1 for left in each)
        gain = math.expm1(_spread(apart, math.log1p(before.least_gain)))
        self.doubt = Doubt(math.exp(NINE_OF_TEN * spread), max(gain, SAME_CAPABILITY.least_gain))

    def ratio(self, name: str, shares: tuple[float, float]) -> float:
        """The ratio of an implementation's times, of the device's and the host's as `Between.shares`."""
        device, host = shares
        of_device, of_host = (_factor(self._factors[share], name) for share in (False, True))
        return max(device * math.exp(of_device), host * math.exp(of_host))

    def left(self, one: Seen) -> float:
        """The logarithm of what is left of a measurement when it is corrected."""
        return one.time - _factor(self._factors[one.of_host], one.name)


class RegimeCorrections:
    """Factors from times and bytes of launched layers to those of another regime, on one device.

    Each implementation has factors of what the host takes, of what the device takes, and of its peak: medians
    at the problems that were measured both ways, drawn towards the operator's and these towards `beyond`, the
    corrections of a device like this one, or 1. What was measured in one share alone has its factor in both,
    since the neighbours are in both. `places` are the devices, with how many measurements.
    """

    def __init__(
        self, here: Evidence, launched: Evidence, device: Device, beyond: RegimeCorrections | None = None
    ) -> None:
        every = list(seen_on_both(here, launched, device, device))
        own = ((device, len(every)),) if every else ()
        self.places: tuple[tuple[Device, int], ...] = (*own, *(beyond.places if beyond else ()))
        self._times: dict[bool, dict[str, float]] = {}
        for of_host in (True, False):
            mine = [one for one in every if one.of_host == of_host] or every
            before = beyond._times[of_host] if beyond else NOTHING_KNOWN
            self._times[of_host] = _factors([(one, one.time) for one in mine], before)
        for of_host, times in self._times.items():
            other = self._times[not of_host]
            for name in other.keys() - times.keys():
                times[name] = times[""] + other[name] - other[""]
        self._bytes: dict[str, float] = _factors(
            [(one, one.bytes) for one in every], beyond._bytes if beyond else NOTHING_KNOWN
        )
        usual = beyond.spread if beyond else math.log(SAME_CAPABILITY.wider) / NINE_OF_TEN
        self.spread: float = _spread(
            (one.time - _factor(self._times[one.of_host], one.name) for one in every), usual
        )
        usual = beyond.spread_of_bytes if beyond else 0.0
        self.spread_of_bytes: float = _spread(
            (one.bytes - _factor(self._bytes, one.name) for one in every), usual
        )

    def corrected(self, name: str, estimate: Estimate, shares: tuple[float, float], noise: float) -> Estimate:
        """An estimate of a launched layer as one of the regime, of at least so much noise.

        shares: of its time, the device's and the host's as `Between.shares`.
        """
        device, host = (
            share * math.exp(_factor(self._times[of_host], name))
            for share, of_host in zip(shares, (False, True), strict=True)
        )
        least_gain = max(math.expm1(self.spread), SAME_CAPABILITY.least_gain, noise)
        timed = estimate.timed(max(device, host), math.exp(NINE_OF_TEN * self.spread), least_gain)
        size, wider = math.exp(_factor(self._bytes, name)), math.exp(NINE_OF_TEN * self.spread_of_bytes)
        return timed.sized(size, wider, math.expm1(self.spread_of_bytes))


def seen_on_both(here: Evidence, there: Evidence, device: Device, origin: Device) -> Iterator[Seen]:
    """The measurements on a device of what was measured on another one too, of one operator."""
    for problem in here.problems.values():
        yield from _seen_at(problem, here, there, device, origin)


def _seen_at(
    problem: Problem, here: Evidence, there: Evidence, device: Device, origin: Device
) -> Iterator[Seen]:
    mine = next(here.measured(problem, device, None), None)
    theirs = next(there.measured(problem, origin, None), None)
    if mine is None or theirs is None:
        return
    known, between = registry.implementations(problem.operator), Between(device, origin, problem["dtype"])
    for name in sorted(mine.estimates.keys() & theirs.estimates.keys() & known.keys()):
        work, one, other = known[name].work(problem), mine.estimates[name], theirs.estimates[name]
        host_ms = there.host_shares.ms(name, problem["mode"], work.launches)
        of_device, of_host = between.shares(other.time_ms, host_ms, work)
        time = math.log(one.time_ms / other.time_ms / max(of_device, of_host))
        size = math.log(max(one.memory_bytes, 1) / max(other.memory_bytes, 1))
        yield Seen(problem, name, of_host >= of_device, time, size)


def _of_share(every: Iterable[Seen], own: Iterable[Seen], of_host: bool) -> dict[str, float]:
    """Factors of the host's share or the device's of an operator, drawn towards that of all operators."""
    of_all, of_own = ([(one, one.time) for one in each if one.of_host == of_host] for each in (every, own))
    return _factors(of_own, {"": _drawn(_by_problem(of_all))}, BETWEEN_DEVICES)


def _factors(
    samples: Sequence[tuple[Seen, float]],
    before: Mapping[str, float] = NOTHING_KNOWN,
    prior: float = PRIOR,
) -> dict[str, float]:
    """Logs of an operator's factor, by "", and of each implementation's, drawn towards those of before."""
    overall = _drawn(_by_problem(samples), before[""], prior)
    found = {"": overall}
    for name in {one.name for one, _ in samples} | (before.keys() - {""}):
        own = [logarithm - overall for one, logarithm in samples if one.name == name]
        found[name] = overall + _drawn(own, before.get(name, before[""]) - before[""], prior)
    return found


def _by_problem(samples: Iterable[tuple[Seen, float]]) -> list[float]:
    """The median of each problem, since errors there have much in common: it counts once, however many were
    measured at it.
    """
    by_problem = defaultdict[Problem, list[float]](list)
    for one, logarithm in samples:
        by_problem[one.problem].append(logarithm)
    return [median(each) for each in by_problem.values()]


def _factor(factors: Mapping[str, float], name: str) -> float:
    """Log of an implementation's factor, its operator's where it has none."""
    return factors.get(name, factors[""])


def _drawn(logarithms: Sequence[float], towards: float = 0.0, prior: float = PRIOR) -> float:
    """Their median, drawn towards another value as a mean is by so many further ones."""
    if not logarithms:
        return towards
    return (median(logarithms) * len(logarithms) + prior * towards) / (len(logarithms) + prior)


def _spread(left: Iterable[float], usual: float) -> float:
    """The standard deviation of what is left of measurements, and of PRIOR further ones as usual."""
    squares = [one**2 for one in left]
    return math.sqrt((math.fsum(squares) + PRIOR * usual**2) / (len(squares) + PRIOR))


def doubt(device: Device, origin: Device) -> Doubt:
    """The doubt about times on a device that are carried over from another one."""
    return SAME_CAPABILITY if runs_the_same(device, origin) else OTHER_CAPABILITY


class Between:
    """The ratio of a time on `device` to that on `origin`, for what computes in a dtype.

    A call takes as long as the device or the host, whichever is longer. The device's time has three shares:
    its roofline, the longer of what operations and bytes take at the rates of the device, goes by the rates
    of the other one; what kernels take to start stays; what is left goes by the arithmetic, because products
    are too small to fill the device, or steps on chip or on what the L2 cache holds wait for each other. The
    host takes as long for both, or as long as this one takes, where that is known.
    """

    def __init__(self, device: Device, origin: Device, dtype: str) -> None:
        both = _rates(device) & _rates(origin)
        self._pair = pair = device, origin
        self._flops = [_rate(one, dtype, both) for one in pair]
        self._bytes = [one.copy_bytes_per_s or 1.0 for one in pair]
        self._vectors = [_rate(one, "float32", both) for one in pair]
        self._has_dtype = dtype in both  # products of others are emulated on one of them, step by step
        self.host = 1.0  # the ratio of what the host takes
        if device.host and device.launch_us and origin.launch_us:
            self.host = device.launch_us / origin.launch_us

    def ratio(self, time_ms: float, host_ms: float, work: Work) -> float:
        """The ratio for what does `work` in `time_ms` on the origin, of which launching takes `host_ms`."""
        return max(self.shares(time_ms, host_ms, work))

    def shares(self, time_ms: float, host_ms: float, work: Work) -> tuple[float, float]:
        """The ratios of the device's time and of the host's, of which the larger one is that of the time."""
        if not time_ms:
            return 1.0, 1.0
        moved_bytes = from_memory(work, *self._pair)
        mine, theirs = (
            1e3 * math.sqrt(math.hypot((work.flops / flops) ** 2, (moved_bytes / moved) ** 2))
            for flops, moved in zip(self._flops, self._bytes, strict=True)
        )
        if theirs > time_ms:  # from a cache, or faster than large ones are
            mine, theirs = mine * time_ms / theirs, time_ms
        starting = min(work.launches * START_MS, time_ms - theirs)
        # of a time that may be the host's the device's is known from the roofline alone
        host_ms = min(host_ms, time_ms)
        surely = min((time_ms / host_ms - 1) / OF_THE_DEVICE, 1.0) if host_ms else 1.0
        rest = surely * (time_ms - theirs - starting)
        by_products = self._has_dtype and work.flops >= PRODUCTS * work.moved_bytes
        rates = self._flops if by_products else self._vectors
        whole_ms = max(theirs + starting + rest, host_ms)
        return (mine + starting + rest * rates[1] / rates[0]) / whole_ms, self.host * host_ms / whole_ms


def _rate(device: Device, dtype: str, common: set[str]) -> float:
    """Operations per second of products, of a dtype in common where float32 is not in common either."""
    if "float32" not in common and dtype not in common:
        dtype = min(common)
    return matmul_rate(device, dtype)


def has_rates(device: Device) -> bool:
    """Whether shares of times on a device are known: on a GPU with rates of products and of its memory."""
    return device.kind == "cuda" and bool(_rates(device))


def _rates(device: Device) -> set[str]:
    """The dtypes whose rate of matrix products is known, none where that of the memory is not."""
    return set(device.matmul_flops_per_s) if device.copy_bytes_per_s else set()


def _copy_ratio(device: Device, other: Device) -> float:
    return (device.copy_bytes_per_s or 1.0) / (other.copy_bytes_per_s or 1.0)
