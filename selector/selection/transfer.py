"""Estimates carried over from a GPU that was measured to one that was not.

A time is carried over by its shares, see `Between`. Of implementations that were measured on an H200 and an
H100 at the same problems, times of CUDA graphs so carried are off by 2 % (median), and launched ones by 7 %.
Of what others measured (`python -m benchmarks.selection.transfer --public`; forward, of 50 us and longer),
each device foretold from the one most like it, times are off by 2 to 3 % to a device of the same compute
capability (linear layers and attention in bfloat16), and to another one by 11 to 18 % (linear layers), 18 %
(attention), 16 % (products in float32), 15 % (norms) and 6 to 13 % (activations). How good choices are on
another compute capability nobody has measured, so that a switch away from the default must gain a quarter.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device, Problem, Work
from kernel_selector.kernels.contract.errors import number_of

from ..cost_model.estimate import Tier
from ..cost_model.features.roofline import matmul_rate
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


PRIOR = 2.0  # measurements that what was seen elsewhere counts for
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
    estimates = {}
    for name, estimate in tier.estimates.items():
        work = known[name].work(problem)
        host_ms = host.ms(name, problem["mode"], work.launches)
        ratio = between.ratio(estimate.time_ms, host_ms, work) * seen.factor(name)
        estimates[name] = estimate.timed(ratio, *seen.doubt)
    nothing = f"nothing comparable of {problem.operator} was measured on {device.name}"
    by = f", corrected by {number_of(seen.count, 'measurement')} here" if seen.count else ""
    words = f"Carried over from {origin.name}{by}: {nothing}."
    return tier._replace(source=SOURCE, estimates=estimates, caveats=(words, *tier.caveats), origin=origin)


def runs_the_same(device: Device, other: Device) -> bool:
    """Whether the same kernels run on two GPUs; of processors nobody knows."""
    return device.kind == "cuda" and device.compute_capability == other.compute_capability


class Corrections:
    """Factors of times that are carried over from `origin`, by problems that were measured on both devices.

    A factor is the geometric mean of what was measured here over what was carried over, of the operator and
    then of each implementation, both drawn towards 1 as by PRIOR measurements that agree. `doubt` is what is
    left of it; `without` is a problem that does not count.
    """

    def __init__(
        self, here: Evidence, there: Evidence, device: Device, origin: Device, without: Problem | None = None
    ) -> None:
        found: dict[str, list[float]] = defaultdict(list)
        for problem in here.problems.values() if device.kind == "cuda" else ():
            for name, one in ratios(problem, here, there, device, origin) if problem != without else ():
                found[name].append(one)
        self.count = sum(map(len, found.values()))
        self._all = _drawn([one for each in found.values() for one in each])
        self._own = {name: _drawn([one - self._all for one in each]) for name, each in found.items()}
        before = doubt(device, origin)
        left = [one - self._all - self._own[name] for name, each in found.items() for one in each]
        spread = math.log(before.wider) / NINE_OF_TEN
        spread = math.sqrt((math.fsum(one**2 for one in left) + PRIOR * spread**2) / (self.count + PRIOR))
        self.doubt = Doubt(
            math.exp(NINE_OF_TEN * spread),
            max(math.expm1(spread), SAME_CAPABILITY.least_gain) if self.count else before.least_gain,
        )

    def factor(self, name: str) -> float:
        """The factor of an implementation's times."""
        return math.exp(self._all + self._own.get(name, 0.0))


def ratios(
    problem: Problem, here: Evidence, there: Evidence, device: Device, origin: Device
) -> Iterator[tuple[str, float]]:
    """Implementations that were measured at a problem on both devices, each with the logarithm of the time
    here over that carried over."""
    mine = next(here.measured(problem, device, None), None)
    theirs = next(there.measured(problem, origin, None), None)
    if mine is None or theirs is None:
        return
    known, between = registry.implementations(problem.operator), Between(device, origin, problem["dtype"])
    for name in mine.estimates.keys() & theirs.estimates.keys() & known.keys():
        work, time_ms = known[name].work(problem), theirs.estimates[name].time_ms
        host_ms = there.host_shares.ms(name, problem["mode"], work.launches)
        carried_ms = time_ms * between.ratio(time_ms, host_ms, work)
        yield name, math.log(mine.estimates[name].time_ms / carried_ms)


def _drawn(logarithms: Sequence[float]) -> float:
    """Their mean, drawn towards 0."""
    return math.fsum(logarithms) / (len(logarithms) + PRIOR)


def doubt(device: Device, origin: Device) -> Doubt:
    """The doubt about times on a device that are carried over from another one."""
    return SAME_CAPABILITY if runs_the_same(device, origin) else OTHER_CAPABILITY


class Between:
    """The ratio of a time on `device` to that on `origin`, for what computes in a dtype.

    A call takes as long as the device or the host, whichever is longer. The device's time has three shares:
    its roofline, the longer of what operations and bytes take at the rates of the device, goes by the rates
    of the other one; what kernels take to start stays; what is left goes by the arithmetic, because products
    are too small to fill the device or steps on chip wait for each other. The host takes as long for both, or
    as long as this one takes, where that is known.
    """

    def __init__(self, device: Device, origin: Device, dtype: str) -> None:
        both = _rates(device) & _rates(origin)
        pair = device, origin
        self._flops = [_rate(one, dtype, both) for one in pair]
        self._bytes = [one.copy_bytes_per_s or 1.0 for one in pair]
        self._vectors = [_rate(one, "float32", both) for one in pair]
        self._host = 1.0
        if device.host and device.launch_us and origin.launch_us:
            self._host = device.launch_us / origin.launch_us

    def ratio(self, time_ms: float, host_ms: float, work: Work) -> float:
        """The ratio for what does `work` in `time_ms` on the origin, of which launching takes `host_ms`."""
        if not time_ms:
            return 1.0
        mine, theirs = (
            1e3 * math.sqrt(math.hypot((work.flops / flops) ** 2, (work.moved_bytes / moved) ** 2))
            for flops, moved in zip(self._flops, self._bytes, strict=True)
        )
        if theirs > time_ms:  # from a cache, or faster than large ones are
            mine, theirs = mine * time_ms / theirs, time_ms
        starting = min(work.launches * START_MS, time_ms - theirs)
        # of a time that may be the host's the device's is known from the roofline alone
        host_ms = min(host_ms, time_ms)
        surely = min((time_ms / host_ms - 1) / OF_THE_DEVICE, 1.0) if host_ms else 1.0
        rest = surely * (time_ms - theirs - starting)
        rates = self._flops if work.flops >= PRODUCTS * work.moved_bytes else self._vectors
        here = max(mine + starting + rest * rates[1] / rates[0], self._host * host_ms)
        return here / max(theirs + starting + rest, host_ms)


def _rate(device: Device, dtype: str, common: set[str]) -> float:
    """Operations per second of products, of a dtype in common where float32 is not in common either."""
    if "float32" not in common and dtype not in common:
        dtype = min(common)
    return matmul_rate(device, dtype)


def _rates(device: Device) -> set[str]:
    """The dtypes whose rate of matrix products is known, none where that of the memory is not."""
    return set(device.matmul_flops_per_s) if device.copy_bytes_per_s else set()


def _copy_ratio(device: Device, other: Device) -> float:
    return (device.copy_bytes_per_s or 1.0) / (other.copy_bytes_per_s or 1.0)
