"""Networks are smooth where trees have steps, stored as trained, and silent where they know nothing."""

from __future__ import annotations

import copy
import hashlib
import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.utils.estimator_checks import parametrize_with_checks

from kernel_selector.db import Database, StoredModel, models, records
from kernel_selector.kernels import registry
from selector import ModelVersionMismatch, Query, Selector
from selector.cost_model.features.spec import InputColumns
from selector.cost_model.network import WEIGHTS, Network
from selector.cost_model.predictor import Predictor, pack
from selector.cost_model.regression import Regression
from selector.training import fit as training
from selector.training import network as network_training
from selector.training import train as learning
from selector.training.dataset import Dataset, build_dataset
from selector.training.estimator import CostModel, NetworkSettings
from selector.training.evaluation import evaluate_implementation
from selector.training.fit import flat, time_model
from tests.selector import replay

LSTM = registry.operator("lstm")
ONE, OTHER = 2, 3  # columns of two implementations, after two sizes
INPUTS = InputColumns((0, 1), implementations=(ONE, OTHER))


@parametrize_with_checks(
    [CostModel(max_iter=20, network=NetworkSettings(InputColumns((0,))))],
    expected_failed_checks=lambda _: {"check_regressors_train": "reads one column of ten, for two epochs"},
)
def test_scikit_learn_contract(estimator, check, monkeypatch):
    monkeypatch.setattr(network_training, "EPOCHS", 2)
    check(estimator)


def measured(number: int, seed: int = 0):
    """Rows, figures and contests of two implementations whose times wave with two sizes."""
    sizes = np.random.default_rng(seed).uniform(0, 5, (number, 2)).repeat(2, axis=0)
    which = np.tile([0.0, 1.0], number)
    wave = np.sin(2 * sizes[:, 0]) * np.cos(sizes[:, 1])
    rows = np.column_stack([sizes, 1 - which, which])
    return rows, np.exp(sizes[:, 0] + 0.5 * wave * (1 + which)), np.arange(number).repeat(2)


def model(inputs: InputColumns | None = INPUTS) -> CostModel:
    network = inputs and NetworkSettings(inputs)
    return CostModel(implementation_columns=(ONE, OTHER), network=network, max_iter=50)


@pytest.fixture(scope="module", autouse=True)
def thorough() -> Iterator[None]:
    """There is little to learn from here, so it is gone through more often."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(network_training, "EPOCHS", 300)
        yield


@pytest.fixture(scope="module")
def fitted() -> CostModel:
    return model().fit(*measured(300))


def test_what_is_smooth_is_learned_better_with_a_network(fitted):
    rows, figures, contests = measured(200, seed=1)
    alone = model(None).fit(*measured(300))

    def error(one: CostModel) -> tuple[float, float]:
        wrong = np.log(one.predict(rows, contests) / figures)
        return float(np.abs(wrong).mean()), float(np.abs(wrong[::2] - wrong[1::2]).mean())

    for with_one, trees in zip(error(fitted), error(alone), strict=True):
        assert with_one < 0.7 * trees


def test_two_fits_are_the_same_and_leave_torch_as_it_was(monkeypatch):
    monkeypatch.setattr(network_training, "EPOCHS", 10)
    once = model().fit(*measured(300))
    torch.manual_seed(7)
    threads, state, torch_dtype = torch.get_num_threads(), torch.get_rng_state(), torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.inference_mode():
            again = model().fit(*measured(300))
    finally:
        torch.set_default_dtype(torch_dtype)
    assert (torch.get_num_threads(), torch.is_grad_enabled()) == (threads, True)
    assert torch.equal(torch.get_rng_state(), state)
    for name, array in once.network_.arrays("n").items():
        np.testing.assert_array_equal(array, again.network_.arrays("n")[name])


def stored_arrays(one: CostModel) -> dict:
    with np.load(io.BytesIO(pack(flat(one), flat(one))), allow_pickle=False) as arrays:
        return dict(arrays)


def test_what_is_stored_predicts_what_was_trained(fitted):
    rows, _, contests = measured(100, seed=2)
    stored = Regression.from_arrays(stored_arrays(fitted), "time", rows.shape[1])
    np.testing.assert_allclose(
        stored.predict(rows, contests), fitted.predict(rows, contests), rtol=1e-12, atol=0
    )


def test_with_a_share_the_mean_of_network_and_trees_counts_where_the_network_answers(fitted):
    rows, _, contests = measured(100, seed=4)
    rows[1, (ONE, OTHER)] = 0  # an implementation that it does not know, in the first contest
    both = copy.copy(fitted).set_params(network=NetworkSettings(INPUTS, share=0.25))
    network, trees = flat(fitted).predict(rows, contests), fitted._by_trees(rows)
    found = flat(both).predict(rows, contests)
    np.testing.assert_allclose(found, both.predict(rows, contests), rtol=1e-12, atol=0)
    trees = np.exp(trees + fitted.roofline_.predict_log(rows))
    np.testing.assert_allclose(found[:2], trees[:2], rtol=1e-12, atol=0)
    np.testing.assert_allclose(found[2:], network[2:] ** 0.25 * trees[2:] ** 0.75, rtol=1e-12, atol=0)


@pytest.mark.parametrize("number", [1, 2, 7, 255, 256, 257, 513])
def test_a_row_is_predicted_alike_alone_and_among_others(fitted, number):
    rows, _, contests = measured(300, seed=3)
    network = fitted.network_
    everything = network.residual(rows)
    np.testing.assert_array_equal(network.residual(rows[:number]), everything[:number])
    np.testing.assert_array_equal(network.residual(rows[9:10]), everything[9:10])
    np.testing.assert_array_equal(network.residual(rows[:number], contests[:number]), everything[:number])


def test_no_rows_are_no_predictions(fitted):
    assert flat(fitted).predict(np.zeros((0, 4))).shape == (0,)


def test_of_a_contest_with_an_unseen_implementation_trees_judge_all(fitted):
    rows, _, contests = measured(3, seed=4)
    rows[0, [ONE, OTHER]] = 0
    silent = np.isnan(fitted.network_.residual(rows, contests))
    assert silent.tolist() == [True, True, False, False, False, False]
    assert np.isnan(fitted.network_.residual(rows)).tolist() == [True] + [False] * 5
    stored = flat(fitted)
    by_trees = np.exp(stored.roofline.predict_log(rows) + stored.trees.predict(rows))
    assert (stored.predict(rows, contests) == by_trees).tolist() == silent.tolist()
    np.testing.assert_allclose(stored.predict(rows, contests), fitted.predict(rows, contests), rtol=1e-12)


def test_running_the_code_of_another_takes_what_it_takes_more():
    """Every other problem was measured through a caller as well, for whom all takes 1.5 times as long."""
    rows, figures, contests = measured(300)
    called = np.flatnonzero(contests % 2)
    rows = np.column_stack([np.concatenate((rows, rows[called])), np.arange(600 + len(called)) >= 600])
    figures = np.concatenate((figures, 1.5 * figures[called]))
    one = model(INPUTS._replace(callers=(4,))).fit(
        rows, figures, np.concatenate((contests, contests[called]))
    )
    assert one.network_.caller_columns.tolist() == [4]
    asked = np.column_stack([measured(50, seed=5)[0], np.zeros(100)])
    through = asked.copy()
    through[:, 4] = 1
    more = one.network_.residual(through) - one.network_.residual(asked)
    assert np.abs(more - np.log(1.5)).mean() < 0.05


def test_an_implementation_without_rows_has_no_head():
    rows, figures, contests = measured(20)
    network = model().fit(rows[::2], figures[::2], contests[::2]).network_
    assert network.head_columns.tolist() == [ONE]
    rows[:, [ONE, OTHER]] = 0
    assert model().fit(rows, figures, contests).network_ is None


def test_far_outside_the_network_says_what_it_says_at_the_edge(fitted):
    rows = np.array([[1e3, 2.0, 1, 0], [1e9, 2.0, 1, 0]])
    near, far = fitted.network_.residual(rows)
    assert near == far


def test_physics_extrapolates_beside_a_network(monkeypatch):
    monkeypatch.setattr(network_training, "EPOCHS", 30)
    sizes = np.arange(1.0, 400)
    one = CostModel(term_columns=(0,), network=NetworkSettings(InputColumns((0,), logarithmic=(0,))))
    one.fit(sizes[:, None], 3 * sizes)
    assert one.predict([[4000.0]])[0] == pytest.approx(12000, rel=0.02)


def test_few_rows_are_learned_by_trees_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    which = list(replay.problems(layers=(1,), seq=(10,)))[::4]
    dataset = build_dataset(LSTM, replay.sweep(which), [replay.HERE])
    assert len(dataset.rows) < Dataset.least_of_network
    assert time_model(dataset).network is None
    monkeypatch.setattr(Dataset, "least_of_network", len(dataset.rows))
    read = time_model(dataset, 10).network.inputs  # of which a part is judged
    names = [dataset.spec.names[place] for place in read.columns]
    assert [name for name in names if name.startswith("term_") and name.endswith("_s")] == []
    for contest in set(dataset.contest.tolist()):  # what is read is of the problem
        assert np.ptp(dataset.rows[dataset.contest == contest][:, read.columns], axis=0).max() == 0
    assert set(read.logarithmic) < set(read.columns)
    assert training.memory_model(dataset).rest.network is None


@pytest.fixture(scope="module")
def smooth_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A database with a model that has a network, learned from few rows all the same."""
    path = tmp_path_factory.mktemp("smooth") / "measurements.sqlite"
    with pytest.MonkeyPatch.context() as patch, Database.open(path, create=True) as database:
        patch.setattr(Dataset, "least_of_network", 0)
        patch.setattr(network_training, "EPOCHS", 5)
        with database.write() as connection:
            records.add(connection, records=replay.sweep(list(replay.problems())[::5]))
        learning.train("lstm", database)
    return path


@pytest.mark.usefixtures("here")
def test_a_batch_is_answered_as_single_questions(smooth_file: Path) -> None:
    asked = [Query(hyperparameters={"hidden": 40 + 3 * size, "batch": 9, "seq": 33}) for size in range(60)]
    together = Selector(smooth_file).choose_each(asked)
    alone = [Selector(smooth_file).choose(**query.hyperparameters) for query in asked[::20]]
    assert [choice.source for choice in together] == ["model"] * 60
    assert [choice.to_dict() for choice in together[::20]] == [choice.to_dict() for choice in alone]


def with_arrays(stored: StoredModel, arrays: dict) -> StoredModel:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    checksum = hashlib.sha256(buffer.getvalue()).hexdigest()
    return replace(stored, arrays=buffer.getvalue(), manifest={**stored.manifest, "sha256": checksum})


def test_models_without_networks_are_read_and_incomplete_ones_refused(smooth_file: Path) -> None:
    with Database.open(smooth_file) as database, database.read() as connection:
        stored = models.latest(connection, operator="lstm")
    with np.load(io.BytesIO(stored.arrays), allow_pickle=False) as loaded:
        arrays = dict(loaded)
    assert isinstance(Predictor(stored, LSTM).time_ms.network, Network)
    assert Predictor(stored, LSTM).memory_bytes.network is None
    before = {name: array for name, array in arrays.items() if "network" not in name}
    assert Predictor(replace(with_arrays(stored, before), schema=2), LSTM).time_ms.network is None
    del arrays["time_network_third"]
    with pytest.raises(ModelVersionMismatch, match="time_network_third"):
        Predictor(with_arrays(stored, arrays), LSTM)


@pytest.mark.usefixtures("quick_learner")
def test_a_held_out_implementation_is_judged_by_trees_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = build_dataset(LSTM, replay.sweep(list(replay.problems())[::10]), [replay.HERE])
    noise = training.errors(dataset, training.held_out_shapes(dataset))
    before = evaluate_implementation(dataset, noise, "hoisted")
    monkeypatch.setattr(Dataset, "least_of_network", 0)
    assert evaluate_implementation(dataset, noise, "hoisted") == before


def test_chances_are_shared_within_each_contest():
    scores = torch.tensor([[1.0, 3.0, -200.0, 7.0, 500.0, 499.0]])
    found = network_training._chances(scores, torch.tensor([1, 0, 1, 0, 2, 2]), 3)
    for contest in ([0, 2], [1, 3], [4, 5]):
        torch.testing.assert_close(found[:, contest], scores[:, contest].softmax(1))


def test_a_choice_loses_against_the_fastest_of_its_contest_and_not_endlessly():
    times = np.log([2.0, 1.0, 3.0, 3.3, 90.0])
    lost = network_training._lost(times, np.array([0, 0, 1, 1, 1]))
    np.testing.assert_allclose(lost, [0.2, 0, 0, np.log(1.1), 0.2], rtol=1e-6)


def test_what_choices_lose_counts_beside_errors(monkeypatch: pytest.MonkeyPatch):
    """A network that says nothing yet chooses by roofline: one of two that are alike to it, then the best."""
    lost = torch.tensor([0.0, 0.1, 0.15, 0.0])
    learned = network_training.Learned(
        inputs=torch.zeros(2, 3),
        head=torch.zeros(4, dtype=torch.int64),
        caller=torch.ones(4, dtype=torch.int64),
        target=torch.ones(4),
        roofline=torch.tensor([1.0, 1.0, 9.0, 2.0]),
        lost=lost,
        contest=np.array([0, 0, 1, 1]),
        unit=0.5,
    )
    layers = [torch.zeros_like(layer) for layer in network_training._begun(3, 1)]

    def loss() -> float:
        return float(network_training._loss(layers, learned, np.arange(4), np.arange(2), np.array([2, 2])))

    members, regret = network_training.MEMBERS, network_training.REGRET
    with_it = loss()
    monkeypatch.setattr(network_training, "REGRET", 0.0)
    assert with_it - loss() == pytest.approx(regret * members * (0.1 / 2 + 0) / 2, rel=1e-4)


def test_weights_are_stored_in_half_precision(fitted):
    stored = stored_arrays(fitted)
    assert {stored[f"time_network_{name}"].dtype for name in WEIGHTS} == {np.dtype(np.float16)}
    assert (
        Network.from_arrays(stored, "time_network", measured(1, seed=2)[0].shape[1]).first.dtype == np.float32
    )
