"""The estimator keeps scikit-learn's contract; its trees are the same flattened; small data suffices."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from kernel_selector.kernels import registry
from selector.cost_model.features.columns import MOST_VECTOR, alignments, by_alignment, vectors
from selector.cost_model.features.roofline import terms_seconds
from selector.cost_model.features.spec import ALIGNED, VECTORS, FeatureSpec
from selector.cost_model.flat_trees import FlatTrees
from selector.training.dataset import build_dataset
from selector.training.estimator import CostModel
from selector.training.fit import errors, flat, held_out_shapes, time_model
from selector.workloads.sampling import random_problems
from tests.selector import replay


@parametrize_with_checks([CostModel(max_iter=20)])
def test_scikit_learn_contract(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def dataset():
    which = list(replay.problems(layers=(1,), seq=(10, 50)))[::2]
    return build_dataset(registry.operator("lstm"), replay.sweep(which), [replay.HERE])


@pytest.fixture(scope="module")
def fitted(dataset):
    return time_model(dataset).fit(dataset.rows, dataset.time_ms, dataset.contest)


def test_flat_model_predicts_what_the_estimator_predicts(dataset, fitted):
    ours, theirs = flat(fitted).predict(dataset.rows), fitted.predict(dataset.rows)
    np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=0)


def test_flat_trees_agree_on_ties_and_extremes(dataset, fitted):
    trees = FlatTrees.from_histogram_boosting(fitted.trees_)
    column = trees.feature[np.isfinite(trees.threshold)][0]
    rows = np.repeat(dataset.rows[:1], 3, axis=0)
    rows[:, column] = [trees.threshold[np.isfinite(trees.threshold)][0], 1e300, -1e300]
    np.testing.assert_allclose(trees.predict(rows), fitted.trees_.predict(rows), rtol=1e-12, atol=1e-12)


def test_what_a_contest_has_in_common_does_not_hide_what_differs_in_it():
    """Each was taken on a host that was busy as chance had it; who is faster goes by the size alone."""
    random = np.random.default_rng(0)
    sizes = np.repeat(random.uniform(0, 1, 60), 2)
    second = np.tile([0.0, 1.0], 60)
    contests = np.repeat(np.arange(60), 2)
    slower = np.where(sizes > 0.5, 1.1, 0.9) ** second
    figures = np.repeat(np.exp(random.normal(0, 0.8, 60)), 2) * slower
    rows = np.column_stack([sizes, second])
    test = np.column_stack([np.repeat([0.2, 0.4, 0.6, 0.8], 2), np.tile([0.0, 1.0], 4)])

    def error(*contests):
        predicted = CostModel().fit(rows, figures, *contests).predict(test)
        return np.abs(predicted[1::2] / predicted[::2] / [0.9, 0.9, 1.1, 1.1] - 1).max()

    assert error(contests) < 0.01
    assert error(contests) < error() / 3


def test_the_first_stage_extrapolates():
    rows = np.column_stack([np.arange(1.0, 50), np.ones(49)])
    model = CostModel(term_columns=(0, 1)).fit(rows, 3 * rows[:, 0] + 2)
    assert model.predict([[1000.0, 1.0]])[0] == pytest.approx(3002, rel=0.01)


def test_implementations_have_their_own_weights():
    sizes = np.tile(np.arange(1.0, 41), 2)
    which = np.repeat([0.0, 1.0], 40)
    rows = np.column_stack([sizes, 1 - which, which])
    model = CostModel(term_columns=(0,), implementation_columns=(1, 2)).fit(
        rows, np.where(which == 1, 5, 2) * sizes
    )
    np.testing.assert_allclose(model.roofline_.weights[1:, 0], [2, 5])


def test_figures_must_be_positive():
    with pytest.raises(ValueError, match="y must be positive"):
        CostModel().fit([[1.0], [2.0]], [1.0, 0.0])


def test_features_are_physical():
    operator = registry.operator("lstm")
    spec = FeatureSpec(operator, ("torch_lstm", "hoisted"))
    problem = operator.problem(hidden=96, batch=8)
    work = registry.implementation("lstm", "hoisted").work(problem)
    (row,) = spec.matrix(problem, replay.HERE, {"hoisted": work})
    value = dict(zip(spec.names, row, strict=True))
    assert len(row) == len(spec.names) == len(set(spec.names))
    assert value["hidden"] == pytest.approx(np.log2(96))
    assert (value["hidden_alignment"], value["is_hoisted_on_cpu"], value["is_torch_lstm_on_cpu"]) == (5, 1, 0)
    assert (value["mode=training"], value["mode=inference"]) == (1, 0)
    seconds = terms_seconds(work, problem, replay.HERE)
    assert value["term_operations_wider_training_s"] == pytest.approx(work.flops / 4e11)
    assert value["sum_s"] == pytest.approx(np.log2(sum(seconds)))


def test_who_runs_the_code_of_another_has_its_column_and_one_of_its_own():
    operator = registry.operator("attention")
    spec = FeatureSpec(operator, ("sdpa_cudnn", "sdpa_efficient"))
    problem = operator.problem(batch=2, heads=8, seq=64, head_dim=64, dtype="bfloat16")
    device = replace(replay.HERE, kind="cuda", compute_capability=(9, 0))
    names = ("torch_sdpa", "sdpa_cudnn")
    works = {name: registry.implementation("attention", name).work(problem) for name in names}
    rows = spec.matrix(problem, device, works)
    columns = ("is_sdpa_cudnn_on_cuda", "is_sdpa_efficient_on_cuda", "called_by_torch_sdpa")
    assert rows[:, spec.columns(columns)].tolist() == [[1, 0, 1], [1, 0, 0]]


def test_alignments():
    assert alignments([1, 96, 128, 1024, 0]).tolist() == [0, 5, 7, 7, 7]


def test_vectors_go_by_the_size_that_divides_least_and_by_the_element():
    inner = np.array([[128, 64], [128, 158], [8, 24], [3, 1024], [4, 4]])
    bytes_of, *flags = vectors(alignments(inner), np.array([2.0, 2.0, 2.0, 4.0, 4.0]))
    assert bytes_of.tolist() == [4, 2, 4, 2, 4]
    assert np.array(flags).argmax(axis=0).tolist() == [4, 2, 4, 2, 4]
    assert np.array(flags).sum(axis=0).tolist() == [1.0] * 5
    assert vectors(np.zeros((2, 0)), np.array([2.0, 4.0]))[0].tolist() == [MOST_VECTOR] * 2


def test_work_is_in_the_column_of_its_alignment():
    seconds = np.array([[1e-6, 2e-6], [2e-6, 5e-6], [9.0, 9.0]])  # launches do not count
    aligned, other = by_alignment(seconds, np.array([4.0, 3.0]))
    assert aligned.tolist() == pytest.approx([2, 0])
    assert other.tolist() == pytest.approx([0, 3])


def test_rows_of_a_product_are_those_of_its_contiguous_sizes():
    operator = registry.operator("batched_matmul")
    spec = FeatureSpec(operator, ("scheduled",))
    work = registry.implementation("batched_matmul", "scheduled").work

    def columns(**sizes):
        problem = operator.problem({"batch": 3, "rows": 5, "dtype": "bfloat16", "mode": "inference", **sizes})
        row = spec.matrix(problem, replay.HERE, {"scheduled": work(problem)})[0]
        return {name: row[spec.names.index(name)] for name in (*VECTORS, *ALIGNED)}

    odd, even = columns(inner=158, columns=2048), columns(inner=160, columns=2048)
    assert (odd["vector_bytes"], odd["vectors_of_4_bytes"]) == (2, 1)
    assert (even["vector_bytes"], even["vectors_of_16_bytes"]) == (4, 1)
    assert odd["aligned_work_s"] == even["misaligned_work_s"] == 0
    assert min(even["aligned_work_s"], odd["misaligned_work_s"]) > 0


def test_rows_of_many_problems_are_those_of_each():
    operator = registry.operator("lstm")
    known = registry.implementations("lstm")
    spec = FeatureSpec(operator, tuple(known))
    given = [{"hidden": 96, "mode": "training"}, {"hidden": 33, "batch": 7, "dtype": "bfloat16"}]
    problems = [operator.problem({"batch": 8, "mode": "inference", **one}) for one in given]
    asked = [
        (problem, {name: known[name].work(problem) for name in names})
        for problem, names in zip(problems, (("hoisted", "unfused"), ("torch_lstm",)), strict=True)
    ]
    each = [spec.matrix(problem, replay.HERE, works) for problem, works in asked]
    np.testing.assert_array_equal(spec.matrices(replay.HERE, asked), np.concatenate(each))


@pytest.mark.parametrize("name", ["lstm", "attention", "linear"])
def test_what_networks_read_is_alike_for_all_implementations_of_a_problem(name):
    operator, known = registry.operator(name), registry.implementations(name)
    spec = FeatureSpec(operator, tuple(known))
    problems = random_problems(name, "cuda", count=20, seed=3)
    works = [(problem, {one: item.work(problem) for one, item in known.items()}) for problem in problems]
    rows = spec.matrices(replay.HERE, works).reshape(len(problems), len(known), -1)
    differs = (rows != rows[:, :1]).any(axis=(0, 1))
    assert not differs[list(spec.input_columns.columns)].any()
    assert differs[list(spec.implementation_columns)].any()


def test_held_out_predictions_are_good_and_intervals_honest(dataset):
    held_out = held_out_shapes(dataset)
    assert np.median(np.abs(held_out.time_ms / dataset.time_ms - 1)) < 0.15
    found = errors(dataset, held_out)
    inside = [
        found[name]["time"][0] <= time / predicted <= found[name]["time"][1]
        for name, time, predicted in zip(
            dataset.implementation, dataset.time_ms, held_out.time_ms, strict=True
        )
    ]
    assert np.mean(inside) >= 0.9
