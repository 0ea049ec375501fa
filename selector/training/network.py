"""Training of a cost model's networks with torch on one thread; `cost_model.network` has what they are."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import huber_loss, pad, silu

from ..cost_model.network import Network, read_inputs, standardised
from ..cost_model.roofline_stage import place_of
from .examples import Examples, Floats, together

Integers = NDArray[np.intp]

MEMBERS, WIDTH, LAYERS = 12, 64, 3
EPOCHS = 30  # times the effort
BATCH = 64  # contests
LEARNING_RATE, WEIGHT_DECAY, WARM_UP = 1e-2, 3e-2, 0.1
DELTA = 0.05  # of the Huber loss, in logarithms: beyond it errors count by their size, not its square
COMMON = 0.3  # what the mean error of a contest counts for, against the errors around it
REGRET = 0.2  # what choosing by the network loses counts for, against these errors
CLOSE = 0.03  # logarithms: predictions that are less apart are chosen between nearly by chance
LARGEST_LOSS = 0.2  # of a choice, in logarithms: what loses more counts alike
GAINS = (2.0 * 0.7**2, 0.2 * 0.5**2)  # variance of weights times inputs: of hidden layers, of the heads


class Learned(NamedTuple):
    """Training tensors of a network, a row for each measurement."""

    inputs: Tensor  # [contests, inputs]
    head: Tensor  # [rows]
    caller: Tensor  # [rows]: the output that is added, one behind the last for none
    target: Tensor  # [rows], in units
    roofline: Tensor  # [rows], in units: with what is predicted, the whole logarithm
    lost: Tensor  # [rows]: the logarithm of the figure over the least of its contest, LARGEST_LOSS at most
    contest: Integers  # [rows], numbers from 0
    unit: float  # the standard deviation of the residual, in logarithms


def fit_network(examples: Examples, related: Examples | None = None, effort: float = 1.0) -> Network | None:
    """The network for the residuals of examples; None where no row has a head, and nothing can be learned.

    It learns from `related` examples as well, whose columns are those of `examples` and then their own: these
    are 0 in the rows of `examples`, and are folded into the biases of the network. `effort` multiplies the
    number of epochs. The same rows give the same network. No setting of torch stays changed.
    """
    if related is None:
        return _network(examples, effort)
    both = _network(together([examples, related]), effort)
    return None if both is None else _part_of(both, examples)


def _network(examples: Examples, effort: float) -> Network | None:
    """As fit_network, without related examples."""
    rows, roofline, residual, contests, inputs = examples
    flags = rows[:, list(inputs.implementations)] == 1
    heads = np.flatnonzero(flags.any(axis=0))
    mine = flags.any(axis=1) if inputs.implementations else np.ones(len(rows), dtype=bool)
    if not mine.any():
        return None
    rows, roofline, residual, flags = rows[mine], roofline[mine], residual[mine], flags[mine]
    _, first, contest = np.unique(contests[mine], return_index=True, return_inverse=True)
    columns = np.array([c for c in inputs.columns if np.ptp(rows[:, c]) > 0], dtype=np.int32)
    logarithmic = np.isin(columns, inputs.logarithmic)
    read = read_inputs(rows[first], columns, logarithmic)
    mean, scale = read.mean(axis=0), 1 / (read.std(axis=0) + 1e-6)
    unit = float(residual.std()) or 1.0
    head = flags[:, heads].argmax(axis=1) if len(heads) else np.zeros(len(rows), dtype=np.intp)
    callers = [column for column in inputs.callers if rows[:, column].any()]
    caller = place_of(rows, np.array(callers, dtype=np.int32))
    outputs = max(len(heads), 1) + len(callers)
    with _one_thread(), torch.inference_mode(False), torch.enable_grad():
        learned = Learned(
            inputs=torch.from_numpy(standardised(read, mean, scale)),
            head=torch.from_numpy(head),
            caller=torch.from_numpy(np.where(caller < 0, outputs, outputs - len(callers) + caller)),
            target=torch.from_numpy((residual / unit).astype(np.float32)),
            roofline=torch.from_numpy((roofline / unit).astype(np.float32)),
            lost=torch.from_numpy(_lost(roofline + residual, contest)),
            contest=contest,
            unit=unit,
        )
        layers = _fitted(learned, outputs, round(EPOCHS * effort))
    names = ("first", "first_bias", "second", "second_bias", "third", "third_bias", "heads", "head_bias")
    return Network(
        columns=columns,
        logarithmic=logarithmic,
        mean=mean,
        scale=scale,
        **dict(zip(names, _arrays(layers, unit), strict=True)),
        head_columns=np.array(inputs.implementations, dtype=np.int32)[heads],
        caller_columns=np.array(callers, dtype=np.int32),
    )


def _part_of(both: Network, examples: Examples) -> Network | None:
    """The part of a network of all examples that `examples` need; None where their rows have no head."""
    inputs = both.columns < examples.rows.shape[1]
    known = np.flatnonzero(examples.rows.any(axis=0))
    heads, callers = np.isin(both.head_columns, known), np.isin(both.caller_columns, known)
    if not heads.any():
        return None
    its_own = np.append(heads, callers)
    zeros = standardised(np.zeros((1, len(inputs))), both.mean, both.scale)[0]  # what the others always are
    return replace(
        both,
        **{name: getattr(both, name)[inputs] for name in ("columns", "logarithmic", "mean", "scale")},
        **{name: getattr(both, name)[its_own] for name in ("heads", "head_bias")},
        head_columns=both.head_columns[heads],
        caller_columns=both.caller_columns[callers],
        first=both.first[:, inputs],
        first_bias=both.first_bias + (zeros[~inputs] @ both.first[:, ~inputs])[:, None],
    )


def _lost(logarithms: Floats, contest: Integers) -> NDArray[np.float32]:
    """What choosing each row of its contest would lose, as Learned has it, shape [rows]."""
    least = np.full(contest.max() + 1, np.inf)
    np.minimum.at(least, contest, logarithms)
    return np.minimum(logarithms - least[contest], LARGEST_LOSS).astype(np.float32)


def _fitted(learned: Learned, outputs: int, epochs: int) -> list[Tensor]:
    """Weights [members, in, out] and biases [members, 1, out] of the layers, in turns."""
    random = np.random.default_rng(0)
    layers = _begun(learned.inputs.shape[1], outputs)
    optimizer = torch.optim.AdamW(layers, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY, fused=True)
    order = np.argsort(learned.contest, kind="stable")
    counts = np.bincount(learned.contest)
    starts = np.cumsum(counts) - counts
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        LEARNING_RATE,
        total_steps=epochs * math.ceil(len(counts) / BATCH) + 1,
        pct_start=WARM_UP,
        cycle_momentum=False,
    )
    for _ in range(epochs):
        shuffled = random.permutation(len(counts))
        for batch in np.split(shuffled, range(BATCH, len(counts), BATCH)):
            which = np.concatenate([order[starts[one] : starts[one] + counts[one]] for one in batch])
            optimizer.zero_grad()
            _loss(layers, learned, which, batch, counts[batch]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
    return layers


def _begun(inputs: int, outputs: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    sizes = [inputs, *[WIDTH] * LAYERS, outputs]
    layers = []
    for number, (read, made) in enumerate(pairwise(sizes)):
        deviation = math.sqrt(GAINS[number == LAYERS] / max(read, 1))
        drawn = torch.randn(MEMBERS, read, made, generator=generator, dtype=torch.float32, device="cpu")
        layers += [drawn * deviation, torch.zeros(MEMBERS, 1, made, dtype=torch.float32, device="cpu")]
    return [layer.requires_grad_() for layer in layers]


def _loss(
    layers: list[Tensor], learned: Learned, which: Integers, contests: Integers, counts: Integers
) -> Tensor:
    """Summed over members, of the rows `which` [rows], contest by contest with `counts` [contests] rows."""
    rows = torch.from_numpy(which)
    hidden = learned.inputs[torch.from_numpy(contests)].expand(MEMBERS, -1, -1)
    for weight, bias in zip(layers[:-2:2], layers[1:-2:2], strict=True):
        hidden = silu(torch.baddbmm(bias, hidden, weight))
    outputs = pad(torch.baddbmm(layers[-1], hidden, layers[-2]), (0, 1))  # [members, contests, outputs + 1]
    contest = torch.from_numpy(np.repeat(np.arange(len(counts)), counts))
    said = outputs[:, contest, learned.head[rows]] + outputs[:, contest, learned.caller[rows]]
    error = said - learned.target[rows]  # [members, rows]
    common = _sums(error, contest, len(counts)) / torch.from_numpy(counts.astype(np.float32))
    within, delta = error - common[:, contest], DELTA / learned.unit
    scores = -(said + learned.roofline[rows]) * (learned.unit / CLOSE)
    regret = (_chances(scores, contest, len(counts)) * learned.lost[rows]).sum() / len(counts)
    return MEMBERS * (_huber(within, delta) + COMMON * _huber(common, delta)) + REGRET * regret


def _chances(scores: Tensor, contest: Tensor, contests: int) -> Tensor:
    """The softmax of scores [members, rows] over the rows of each contest."""
    nothing = scores.new_full((len(scores), contests), -math.inf)
    most = nothing.scatter_reduce(1, contest.expand_as(scores), scores.detach(), "amax")
    powers = (scores - most[:, contest]).exp()
    return powers / _sums(powers, contest, contests)[:, contest]


def _sums(values: Tensor, contest: Tensor, contests: int) -> Tensor:
    """The sums of values [members, rows] over the rows of each contest, [members, contests]."""
    return values.new_zeros(len(values), contests).index_add(1, contest, values)


def _huber(error: Tensor, delta: float) -> Tensor:
    return huber_loss(error, torch.zeros_like(error), delta=delta)


def _arrays(layers: list[Tensor], unit: float) -> Iterator[NDArray[np.float32]]:
    """As Network has them: the members' mean and the unit of the targets are in the heads.

    Weights are rounded to half precision, in which they are stored.
    """
    *hidden, heads, head_bias = (layer.detach().numpy() for layer in layers)
    for weight, bias in zip(hidden[::2], hidden[1::2], strict=True):
        yield from (_rounded(weight), bias.copy())
    yield _rounded(heads.transpose(2, 0, 1) * np.float32(unit / MEMBERS))
    yield head_bias[:, 0].mean(axis=0) * np.float32(unit)


def _rounded(weights: NDArray[np.float32]) -> NDArray[np.float32]:
    return weights.astype(np.float16).astype(np.float32)


@contextmanager
def _one_thread() -> Iterator[None]:
    """More threads would wait for each other on layers as small as these."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
