"""Allowed errors of a tensor: the one table of tolerances, and how an error is taken.

An error is relative to the root mean square (RMS) of the float64 reference tensor, and is taken twice:
as the RMS of the difference, which sees a small fault everywhere, and as its maximum, which sees a
large fault in one row. The allowed error is twice that of torch's own implementation at the same
precision, within [floor, cap] of the table: the floor because torch may be exact by luck, the cap so
that torch itself can fail.

Rounding errors have either sign, faults such as a wrong factor have one: of tensors of MANY elements or more
the signed mean is taken besides. What it may be is not in proportion to an element's rounding error, which
mostly cancels there, and so it sees what is far below that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# below this many elements a tensor's own RMS is chance, and that of its group stands in for it
SMALL = 64
# a difference of normal distribution has its maximum over 10^6 elements at 5 RMS, and rounding errors
# grow with the elements that they belong to, whose own maximum is at 5 RMS too; where an element is larger,
# as the first key's gradient under a causal mask, its error counts as a share of a TALL one's
PEAK = 20
TALL = 5
# rows out of the ordinary have their errors in few of them, and how large these are is chance: of 8,474
# verdicts on an H100, 21 of implementations that err as torch's operations do were by RMS or peaks of once to
# twice the bound that other rows have. In float64, the answer errs as much as anybody
HARD_PEAK = 40
HARD_TIMES = 3  # what torch's own errs, where it is twice in other rows
HARD_WIDE = 1e-9


# a signed mean is judged from so many elements on; whatever torch's own is, it may be a SIGNED share of the
# floor, which is what rounding a common factor does: in bfloat16, whose outputs come of float32, 5e-5 of an
# output (times 1.002 and rounded is 1.1e-4), in float16 3.5e-5, and 1e-3 of a gradient, where losses round
# the factor of all of them to 16 bits; in float32 1e-6 and 2.5e-6, since products of three TF32 parts, which
# torch's own attention has as well, cut off 2e-7 to 5e-7
MANY = 1000
SIGNED: Mapping[tuple[torch.dtype, str], float] = {
    (torch.bfloat16, "output"): 1 / 80,
    (torch.float16, "output"): 1 / 40,
    (torch.bfloat16, "gradient"): 1 / 10,
    (torch.float16, "gradient"): 1 / 10,
}
SIGNED_WIDE = 1 / 2  # of float32 and float64
# standard errors that a signed mean may be away from 0, and slices along an axis that make one of them
STANDARD_ERRORS = 4
SLICES = 8


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """Bounds of the allowed RMS error, as a fraction of the reference's RMS; `peak` times for the maximum."""

    floor: float
    cap: float
    peak: float = PEAK


# (dtype, kind) -> bounds. Unit roundoff: float64 1e-16, float32 6e-8, float16 5e-4, bfloat16 4e-3.
# Floors of 16-bit dtypes are twice the error of nn.LSTM on a CPU (outputs 7e-4, 2e-3; gradients 2e-3,
# 5e-3), those of wider ones several times (6e-16, 3e-7; 1e-15, 6e-7): rounding there is far below any
# fault. All are below the planted fault `output * 1.01`. The float32 cap
# leaves room for TF32, which torch lets cuDNN use and whose roundoff is that of float16.
TOLERANCES: Mapping[tuple[torch.dtype, str], Tolerance] = {
    (torch.float64, "output"): Tolerance(floor=1e-14, cap=1e-12),
    (torch.float64, "gradient"): Tolerance(floor=2e-14, cap=1e-12),
    (torch.float32, "output"): Tolerance(floor=2e-6, cap=5e-3),
    (torch.float32, "gradient"): Tolerance(floor=5e-6, cap=2e-2),
    (torch.float16, "output"): Tolerance(floor=1.4e-3, cap=1e-2),
    (torch.float16, "gradient"): Tolerance(floor=4e-3, cap=4e-2),
    (torch.bfloat16, "output"): Tolerance(floor=4e-3, cap=4e-2),
    (torch.bfloat16, "gradient"): Tolerance(floor=1e-2, cap=1e-1),
}

# What drops at random (see dropout.py). After a step the weighted outputs may be off what the gradients say
# by SLOPE of the step: a mask of its own in backward is off by 1, one of two masks by 0.5, and a missing
# 1 / (1 - p) by 0.4. Steps are tried in turn, as shares of the outputs that they change: the first so long
# that rounding is a hundredth of the change or less, then others, for outputs with kinks and for few.
# Only gradients count that two seeds change by CLEAR times the allowed error: rounding errors lie in that
# direction more often than not. What allowed errors may do to a step is added to SLOPE; where it is more
# than UNCERTAIN, as with few elements of 16 bits, the step tells nothing.
SLOPE = 0.1
CLEAR = 4
UNCERTAIN = 0.4
DIFFERENCES: Mapping[torch.dtype, tuple[float, ...]] = {
    torch.float64: (2**-12, 2**-16, 2**-8),
    torch.float32: (2**-8, 2**-11, 2**-5),
    torch.float16: (2**-5, 2**-7, 2**-3),
    torch.bfloat16: (2**-4, 2**-6, 2**-2),
}
# The distance of dropped outputs from undropped ones, and that of the mean of eight runs, by torch's: at a
# share of 0.3 the second is 1.5 times torch's or more without 1 / (1 - p), and the first 1.3 times where what
# was to be kept is dropped. Of few elements it is chance how many are dropped: for that, six standard errors
# are added, as multiples of the spread of torch's single runs. A mean's distance spreads 1.6 times as much.
DEVIATION = 0.04
ONE_RUN = 6 * (1 / 8 + 1 / 16) ** 0.5
MEAN_RUN = 6 * 1.6 * (1 + 1 / 2) ** 0.5
# that spread, times the root of the number of elements, at a share of 0.3; at 0.5 single runs do not spread,
# since what is dropped and what is kept is as far away, and their mean does as at other shares
CHANCE = 0.44
# Slices that are dropped alike change together by as many times more than elements alone as they have of
# them; the mean over eight runs and eight slices or more of what is independent spreads by a fifth
ALIKE = 2.5


@dataclass(frozen=True)
class Error:
    """RMS and maximum of a difference, as fractions of the reference's scale."""

    rms: float
    peak: float

    @classmethod
    def of(cls, actual: Tensor, expected: Tensor, scale: float | Tensor) -> Error:
        """The error of `actual`, any dtype, against `expected`, wider or float64, of the same shape.

        `scale` is one for all elements, or a tensor with one for each. Infinite where `actual` has elements
        that are not finite.
        """
        return cls.read(cls.taken(actual, expected, scale).tolist())

    @staticmethod
    def taken(actual: Tensor, expected: Tensor, scale: float | Tensor) -> Tensor:
        """RMS and maximum of `of` as a tensor [2], which no host has waited for."""
        difference = _difference(actual, expected).div_(scale).abs_()
        size = expected.to(torch.float64, copy=True).abs_().div_(scale).clamp_(min=TALL)
        tallest = torch.div(difference, size, out=size).max()
        return torch.stack([difference.square_().mean().sqrt(), TALL * tallest])

    @classmethod
    def read(cls, pair: Sequence[float]) -> Error:
        """The error of what was `taken`."""
        return cls(*(value if math.isfinite(value) else math.inf for value in pair))

    def allowed(self, tolerance: Tolerance) -> Error:
        """The error allowed to a candidate where torch has this one; the floor where it is not finite."""
        finite = math.isfinite(self.rms) and math.isfinite(self.peak)
        rms, peak = (self.rms, self.peak) if finite else (0.0, 0.0)
        return Error(
            min(max(tolerance.floor, 2 * rms), tolerance.cap),
            min(max(tolerance.peak * tolerance.floor, 2 * peak), tolerance.peak * tolerance.cap),
        )

    def or_more(self, other: Error) -> Error:
        """The larger of each of two bounds."""
        return Error(max(self.rms, other.rms), max(self.peak, other.peak))

    def ratio(self, allowed: Error) -> float:
        """The error over the allowed error; at most 1 when it is acceptable."""
        return max(self.rms / allowed.rms, self.peak / allowed.peak)


@dataclass(frozen=True)
class Bias:
    """The signed mean of a difference, sum(sign(ref) (out - ref)) / sum(|ref|), and its standard error.

    The error is the largest of those that single elements and the slices along each axis give: rounding
    errors of a sequence, of a feature or of a row belong together.
    """

    mean: float
    error: float

    @classmethod
    def of(cls, actual: Tensor, expected: Tensor) -> Bias:
        """The bias of `actual` against `expected`, as in `Error.of`."""
        return cls.read(cls.taken(actual, expected).tolist())

    @staticmethod
    def taken(actual: Tensor, expected: Tensor) -> Tensor:
        """Mean and error of `of` as a tensor [2], which no host has waited for."""
        signed = _difference(actual, expected).mul_(expected.sign())
        size = expected.to(torch.float64, copy=True).abs_()
        total = size.sum()
        mean = signed.sum() / total
        rest = signed.sub_(size.mul_(mean))
        del size
        squares = [
            found * (rest.shape[axis] / (rest.shape[axis] - 1)) for axis, found in of_slices(rest).items()
        ]
        squares.append(rest.square_().sum())  # at last: in place
        return torch.stack([mean, torch.stack(squares).max().sqrt() / total])

    @classmethod
    def read(cls, pair: Sequence[float]) -> Bias:
        """The bias of what was `taken`."""
        return cls(*(value if math.isfinite(value) else 0.0 for value in pair))

    def ratio(self, torchs: Bias, rounding: float) -> float:
        """The bias over the allowed one: the largest of twice torch's, of chance and of rounding."""
        allowed = max(2 * abs(torchs.mean), STANDARD_ERRORS * self.error, rounding)
        return abs(self.mean) / allowed


def of_slices(tensor: Tensor) -> dict[int, Tensor]:
    """Sums of the squares of a tensor's sums over slices, tensors [] by axis with SLICES slices and more."""
    found = {}
    for axis, count in enumerate(tensor.shape):
        others = [other for other in range(tensor.dim()) if other != axis]
        if count >= SLICES and others:
            found[axis] = tensor.sum(others).square().sum()
    return found


def _difference(actual: Tensor, expected: Tensor) -> Tensor:
    """The difference in float64, in memory of its own, which may be written to."""
    return actual.detach().to(torch.float64, copy=True).sub_(expected)


def scales(expected: Mapping[str, Tensor]) -> dict[str, float]:
    """The size that each reference tensor's error is relative to: its RMS.

    A tensor of fewer than SMALL elements takes the RMS over all elements of its group (outputs,
    gradients of arguments, gradients of parameters) where that is larger: one element may be close to
    zero by chance, and its rounding error is not.
    """
    squares = {name: float(tensor.double().square().sum()) for name, tensor in expected.items()}
    groups: dict[str, tuple[float, int]] = {}
    for name, tensor in expected.items():
        total, count = groups.get(group(name), (0.0, 0))
        groups[group(name)] = (total + squares[name], count + tensor.numel())
    found = {}
    for name, tensor in expected.items():
        own = (squares[name] / max(tensor.numel(), 1)) ** 0.5
        total, count = groups[group(name)]
        pooled = (total / max(count, 1)) ** 0.5
        # a tensor of zeros only, such as the gradient of an unused input, is judged by its group too
        found[name] = max(own, pooled) if tensor.numel() < SMALL or own == 0 else own
        found[name] = found[name] or 1.0
    return found


def group(name: str) -> str:
    """`output`, `gradient of argument` or `gradient of parameter`: what a tensor is, without its place."""
    return " ".join(name.split("[")[0].split(" ")[:3])


def signed(name: str, dtype: torch.dtype) -> float:
    """The signed mean allowed to a tensor for rounding alone."""
    return SIGNED.get((dtype, kind(name)), SIGNED_WIDE) * TOLERANCES[dtype, kind(name)].floor


def kind(name: str) -> str:
    """`output` or `gradient`: the tolerance table's column."""
    return group(name).split(" ")[0]
