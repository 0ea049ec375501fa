"""Operators that cost alike, and what the network of one learns from measurements of the others.

A network knows of an operator's problems as many as were measured. What hidden size, batch and length cost a
persistent kernel, or a vocabulary a matrix product, it can learn from other operators as well. On H200
measurements of problems that it had not seen, times of LSTMs, GRUs, RNNs and norms err by a tenth less, and
choices among recurrent layers are within 5 % of the best 0.5 to 2.5 points more often. The other way round it
does not pay: linear layers and attention, of which most was measured, learn nothing from their smaller kin
and choose slightly worse. Neither do batched products and vocabulary losses from linear layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from ..cost_model.features.spec import Reads
from .estimator import fit_physics
from .examples import Lesson, together

if TYPE_CHECKING:
    from .dataset import Dataset

KIN: Mapping[str, tuple[str, ...]] = {
    "additive_attention": ("attention",),
    "dropout_add_norm": ("layer_norm", "rms_norm"),
    "gru": ("lstm", "rnn"),
    "layer_norm": ("dropout_add_norm", "rms_norm"),
    "lstm": ("gru", "rnn"),
    "rms_norm": ("dropout_add_norm", "layer_norm"),
    "rnn": ("gru", "lstm"),
}


def kin_lesson(dataset: Dataset) -> Lesson | None:
    """What a network learns from the kin of a dataset beside its own measurements; None without kin.

    Columns are those of the dataset, then those that only kin have, and one for each of these operators:
    in them the dataset's own rows are 0. What implementations of one name cost has much in common, and they
    share a head.
    """
    if not dataset.kin:
        return None
    names = [*dataset.spec.names, *_further(dataset), *(f"of_{one.operator.name}" for one in dataset.kin)]
    place = {name: number for number, name in enumerate(names)}
    return together([_lesson(one, place) for one in dataset.kin])


def _further(dataset: Dataset) -> Iterator[str]:
    """The columns that networks of kin read and the dataset does not have."""
    known = set(dataset.spec.names)
    for one in dataset.kin:
        for column in chain.from_iterable(one.spec.reads):
            name = one.spec.names[column]
            if name not in known:
                known.add(name)
                yield name


def _lesson(kin: Dataset, place: Mapping[str, int]) -> Lesson:
    """One of the kin, with its columns where `place` has them, and a 1 in its own."""
    spec, its_own = kin.spec, place[f"of_{kin.operator.name}"]
    physics = fit_physics(kin.rows, kin.time_ms, spec.time_terms, spec.implementation_columns).predict_log(
        kin.rows
    )
    its = spec.reads
    reads = Reads(*(tuple(place[spec.names[it]] for it in each) for each in its))
    rows = np.zeros((len(kin.rows), len(place)))
    for mine, theirs in zip(reads, its, strict=True):
        rows[:, mine] = kin.rows[:, theirs]
    rows[:, its_own] = 1
    reads = reads._replace(columns=(*reads.columns, its_own))
    return Lesson(rows, physics, np.log(kin.time_ms) - physics, kin.contest, reads)
