"""Operators that cost alike teach each other's networks, and leave nothing of their own in them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kernel_selector.db import Database, models, records
from kernel_selector.kernels import registry
from selector.cost_model.features.spec import InputColumns
from selector.training import fit as training
from selector.training import network as network_training
from selector.training import train as learning
from selector.training.dataset import Dataset, build_dataset
from selector.training.estimator import CostModel, NetworkSettings
from selector.training.examples import Examples, together
from selector.training.fit import flat, time_model
from selector.training.related_operators import RELATED, related_examples
from tests.selector import replay

ONE, OTHER, FURTHER, THEIRS = 2, 3, 4, 5  # columns of implementations after two sizes; then those of related


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_training, "EPOCHS", 3)


@pytest.fixture
def thorough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_training, "EPOCHS", 120)


def measured(number: int, seed: int):
    """Rows, figures and contests of two implementations whose times wave with two sizes."""
    sizes = np.random.default_rng(seed).uniform(0, 5, (number, 2)).repeat(2, axis=0)
    which = np.tile([0.0, 1.0], number)
    wave = np.sin(2 * sizes[:, 0]) * np.cos(sizes[:, 1])
    return np.column_stack([sizes, 1 - which, which]), np.exp(wave * (1 + which)), np.arange(number).repeat(2)


def alike(number: int = 600, factor: float = 1.5) -> Examples:
    """An operator that waves as the first, is slower, and has one implementation of the two and another."""
    rows, figures, contests = measured(number, seed=1)
    of_their_own = np.random.default_rng(2).uniform(100, 105, len(rows))
    further = np.column_stack([of_their_own, rows[:, OTHER]])
    rows = np.column_stack([rows, further])
    rows[:, OTHER] = 0
    residual = np.log(figures * factor)
    return Examples(rows, np.zeros(len(rows)), residual, contests, InputColumns((FURTHER,), (), (THEIRS,)))


def fitted(related: Examples | None, number: int = 12) -> CostModel:
    one = CostModel(
        implementation_columns=(ONE, OTHER),
        network=NetworkSettings(InputColumns((0, 1), implementations=(ONE, OTHER))),
        max_iter=20,
    )
    return one.fit(*measured(number, seed=0), related)


@pytest.mark.usefixtures("thorough")
def test_few_measurements_and_many_of_kin_say_more_than_the_few_alone():
    rows, figures, contests = measured(200, seed=2)

    def error(one: CostModel) -> float:
        assert one.network_ is not None
        said = one.network_.residual(rows, contests)
        return float(np.abs(said - np.log(figures))[::2].mean())  # of the one that both have

    assert error(fitted(alike(), 36)) < 0.75 * error(fitted(None, 36))


def test_what_kin_alone_have_is_not_kept():
    one = fitted(alike())
    network = one.network_
    assert network.columns.tolist() == [0, 1]
    assert network.head_columns.tolist() == [ONE, OTHER]
    assert network.first.shape[1] == len(network.mean) == len(network.scale) == 2
    assert len(network.heads) == len(network.head_bias) == 2
    assert flat(one).predict(measured(3, seed=3)[0]).shape == (6,)


def test_what_is_kept_says_the_same():
    rows, figures, contests = measured(12, seed=0)
    inputs = InputColumns((0, 1), (), (ONE, OTHER))
    examples = Examples(rows, np.zeros(len(rows)), np.log(figures), contests, inputs)
    whole = network_training._network(together([examples, alike()]), 1.0)
    asked = measured(50, seed=4)[0]
    padded = np.column_stack([asked, np.zeros((100, 2))])
    kept = network_training.fit_network(examples, alike())
    np.testing.assert_allclose(kept.residual(asked), whole.residual(padded), atol=1e-5)


def test_an_implementation_that_only_kin_have_measured_has_no_head():
    rows, figures, contests = measured(12, seed=0)
    one = CostModel(
        implementation_columns=(ONE, OTHER),
        network=NetworkSettings(InputColumns((0, 1), implementations=(ONE, OTHER))),
        max_iter=20,
    )
    network = one.fit(rows[1::2], figures[1::2], contests[1::2], alike()).network_
    assert network.head_columns.tolist() == [OTHER]
    rows[:, [ONE, OTHER]] = 0
    assert one.fit(rows, figures, contests, alike()).network_ is None


def test_kin_are_other_operators_of_ours():
    for name, related in RELATED.items():
        assert {name, *related} <= set(registry.operators())
        assert name not in related


def dataset(
    operator: str, hidden: tuple[int, ...] = (32, 64, 100), related: tuple[Dataset, ...] = ()
) -> Dataset:
    known = registry.operator(operator)
    which = [
        known.problem(hidden=size, batch=batch, seq=seq)
        for size in hidden
        for batch in (1, 8)
        for seq in (10, 50)
    ]
    return replace(build_dataset(known, replay.sweep(which), [replay.HERE]), related=related)


def test_a_lesson_of_kin_has_their_columns_where_the_dataset_has_them():
    gru, rnn = dataset("gru"), dataset("rnn")
    lstm = dataset("lstm", related=(gru, rnn))
    examples = related_examples(lstm)
    width = len(lstm.spec.names)
    assert examples is not None
    assert len(examples.rows) == len(gru.rows) + len(rnn.rows)
    of_gru = examples.rows[: len(gru.rows)]
    for name in ("hidden", "least_flops", "is_fused_on_cuda", "is_hoisted_on_cpu"):
        if name in gru.spec.names and name in lstm.spec.names:
            theirs, ours = gru.spec.names.index(name), lstm.spec.names.index(name)
            np.testing.assert_array_equal(of_gru[:, ours], gru.rows[:, theirs])
    assert (of_gru[:, -2:] == [1, 0]).all()
    assert (examples.rows[len(gru.rows) :, -2:] == [0, 1]).all()
    assert len(set(examples.contests[: len(gru.rows)]) & set(examples.contests[len(gru.rows) :])) == 0
    assert set(range(width, examples.rows.shape[1])) <= set().union(*examples.input_columns)
    np.testing.assert_allclose(
        np.exp(examples.roofline + examples.residual), np.concatenate([gru.time_ms, rnn.time_ms])
    )
    assert related_examples(gru) is None


def test_time_is_learned_with_kin_and_the_fold_of_a_problem_without_it(monkeypatch):
    monkeypatch.setattr(Dataset, "least_of_network", 0)
    alone = dataset("lstm")
    together = replace(alone, related=(dataset("gru"),))
    seen = []
    fit = CostModel.fit

    def noted(self, X, y, contests=None, related=None):
        seen.append((len(X), None if related is None else len(related.rows)))
        return fit(self, X, y, contests, related)

    monkeypatch.setattr(CostModel, "fit", noted)
    training.held_out_shapes(together, memory=False)
    theirs = len(together.related[0].rows)
    assert {related for _, related in seen} == {theirs}
    assert sum(len(together.rows) - rows for rows, _ in seen) == len(together.rows)
    seen.clear()
    training.fit_final(together)
    assert seen[0] == (len(together.rows), theirs)
    assert time_model(together).network == time_model(alone).network


@pytest.fixture
def both(tmp_path: Path) -> Iterator[Database]:
    """LSTMs and GRUs, and too few RNNs to learn from."""
    with Database.open(tmp_path / "measurements.sqlite", create=True) as database:
        for name, number in (("lstm", None), ("gru", None), ("rnn", 1)):
            found = list(dataset(name).records)
            few = found if number is None else [it for it in found if it.problem == found[0].problem]
            with database.write() as connection:
                records.add(connection, records=few)
        yield database


def test_kin_are_read_where_there_is_a_network_to_teach(both, monkeypatch):
    assert learning.load_dataset("lstm", both)[0].related == ()
    monkeypatch.setattr(Dataset, "least_of_network", 0)
    related = learning.load_dataset("lstm", both)[0].related
    assert [one.operator.name for one in related] == ["gru"]
    learning.train("lstm", both)
    with both.read() as connection:
        assert models.latest(connection, operator="lstm").manifest["related_operators"] == {
            "gru": len(related[0].rows)
        }
