"""Transfer learning: operators that cost alike, whose measurements teach each other's networks.

A network knows of an operator's problems as many as were measured. What hidden size, batch and length cost a
persistent kernel, or a vocabulary a matrix product, it can learn from other operators as well. On H200
measurements of problems that it had not seen, times of LSTMs, GRUs, RNNs and norms err by a tenth less, and
choices among recurrent layers are within 5 % of the best 0.5 to 2.5 points more often. The other way round it
does not pay: linear layers and attention, of which most was measured, learn nothing from smaller operators
and choose slightly worse. Neither do batched products and vocabulary losses from linear layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from ..cost_model.features.spec import InputColumns
from .estimator import fit_roofline
from .examples import Examples, together

if TYPE_CHECKING:
    from .dataset import Dataset

RELATED: Mapping[str, tuple[str, ...]] = {
    "additive_attention": ("attention",),
    "dropout_add_norm": ("layer_norm", "rms_norm"),
    "gru": ("lstm", "rnn"),
    "layer_norm": ("dropout_add_norm", "rms_norm"),
    "lstm": ("gru", "rnn"),
    "rms_norm": ("dropout_add_norm", "layer_norm"),
    "rnn": ("gru", "lstm"),
}


def related_examples(dataset: Dataset) -> Examples | None:
    """The training examples of a dataset's related operators, for its network; None without any.

    Columns are those of the dataset, then those that only related operators have, and one for each of these
    operators: in them the dataset's own rows are 0. Implementations of one name share a head, since what
    they cost has much in common.
    """
    if not dataset.related:
        return None
    names = [*dataset.spec.names, *_further(dataset), *(f"of_{one.operator.name}" for one in dataset.related)]
    place = {name: number for number, name in enumerate(names)}
    return together([_examples(one, place) for one in dataset.related])


def _further(dataset: Dataset) -> Iterator[str]:
    """The columns that networks of related operators take and the dataset does not have."""
    known = set(dataset.spec.names)
    for one in dataset.related:
        for column in chain.from_iterable(one.spec.input_columns):
            name = one.spec.names[column]
            if name not in known:
                known.add(name)
                yield name


def _examples(related: Dataset, place: Mapping[str, int]) -> Examples:
    """The examples of a related operator, with its columns where `place` has them, and a 1 in its own."""
    spec, its_own = related.spec, place[f"of_{related.operator.name}"]
    roofline = fit_roofline(
        related.rows, related.time_ms, spec.time_terms, spec.implementation_columns
    ).predict_log(related.rows)
    its = spec.input_columns
    inputs = InputColumns(*(tuple(place[spec.names[it]] for it in each) for each in its))
    rows = np.zeros((len(related.rows), len(place)))
    for mine, theirs in zip(inputs, its, strict=True):
        rows[:, mine] = related.rows[:, theirs]
    rows[:, its_own] = 1
    inputs = inputs._replace(columns=(*inputs.columns, its_own))
    return Examples(rows, roofline, np.log(related.time_ms) - roofline, related.contest, inputs)
