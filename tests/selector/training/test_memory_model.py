"""Peak bytes: sums of tensors are found in what was measured, hold at other sizes, and can be stored."""

from dataclasses import replace

import numpy as np
import pytest

from kernel_selector.kernels import registry
from selector.cost_model.features.bias_reductions import column_sums, kinds, partial_sums_bytes
from selector.cost_model.features.spec import FeatureSpec
from selector.cost_model.tensor_sums import FEW, Factor, Sums
from selector.training.dataset import build_dataset
from selector.training.estimator import CostModel
from selector.training.fit import HeldOut, errors, flat
from selector.training.memory import MemoryModel
from selector.training.sum_fit import fit_sums
from tests.selector import replay

GPU = replace(replay.HERE, name="A GPU", kind="cuda", multiprocessors=132)
LINEAR = registry.operator("linear")
SPEC = FeatureSpec(LINEAR, ("padded", "torch_linear"))
SUM = SPEC.names.index("sum_of_rows_by_1_out_features_bytes")
MIB = 2**20


def problems(count, seed=0, *, largest=4096):
    random = np.random.default_rng(seed)
    for _ in range(count):
        rows, inner, outer = (int(size) for size in 8 * random.integers(8, largest // 8, 3))
        yield LINEAR.problem(
            rows=rows,
            in_features=inner,
            out_features=outer,
            activation=str(random.choice(["none", "gelu", "relu"])),
            dtype=str(random.choice(["float32", "bfloat16"])),
            mode="training",
        )


def rows_of(which, name="torch_linear"):
    work = registry.implementation("linear", name).work
    return np.concatenate([SPEC.matrix(problem, GPU, {name: work(problem)}) for problem in which])


def peak_bytes(which):
    """Output, gradients of input, weight and bias, what an activation keeps, and partial sums of the bias."""
    rows, inner, outer = (
        np.array([one[name] for one in which]) for name in ("rows", "in_features", "out_features")
    )
    element = np.array([4 if one["dtype"] == "float32" else 2 for one in which])
    kept = np.array([one["activation"] != "none" for one in which])
    tensors = rows * outer * (1 + kept) + rows * inner + inner * outer + outer
    return element * tensors + partial_sums_bytes(rows, outer, 132)


@pytest.mark.parametrize(
    ("rows", "columns", "mib"),
    [
        (4096, 1024, 32),
        (8192, 1024, 64),
        (16384, 1024, 128),
        (65536, 1024, 132),  # all multiprocessors are busy
        (12800, 512, 50),
        (6400, 2048, 100),
        (2048, 256, 4),
        (800, 512, 0),
    ],
)
def test_sums_over_rows_take_what_was_measured(rows, columns, mib):
    """Measured on an H200 as what linear layers take beyond their tensors."""
    assert partial_sums_bytes(np.array([rows]), np.array([columns]), 132)[0] / MIB == pytest.approx(
        mib, rel=0.02
    )


def test_sums_over_rows_by_operator_and_device():
    assert kinds(("rows", "in_features", "out_features")) == [
        (("rows",), "in_features", 1),
        (("rows",), "out_features", 1),
    ]
    assert (("batch", "seq"), "hidden", 4) in kinds(("hidden", "batch", "seq", "layers"))
    sizes = ("layers", "batch", "hidden", "seq", "rows")
    values = np.array([[2, 32, 1024, 128, 4096], [1, 48, 512, 100, 6000]])
    for device in (replay.HERE, replace(GPU, multiprocessors=None)):
        assert not column_sums(sizes, values, device).any()
    found = dict(zip(kinds(sizes), column_sums(sizes, values, GPU).T, strict=True))
    assert GPU.multiprocessors
    for rows, kind in ((values[:, 4], ("rows",)), (values[:, 1] * values[:, 3], ("batch", "seq"))):
        for times in (1, 3, 4):
            expected = partial_sums_bytes(rows, values[:, 2] * times, GPU.multiprocessors)
            np.testing.assert_array_equal(found[kind, "hidden", times], expected)
            assert expected.any()


def test_sums_hold_at_other_sizes():
    seen, other = list(problems(60)), list(problems(40, seed=1, largest=16384))
    sums = fit_sums(SPEC, rows_of(seen), peak_bytes(seen))
    np.testing.assert_allclose(sums.predict(rows_of(other)), peak_bytes(other), rtol=0.02)


def test_a_wrong_measurement_is_outvoted():
    seen = list(problems(60))
    figures = peak_bytes(seen)
    figures[7] /= 500
    found = fit_sums(SPEC, rows_of(seen), figures).predict(rows_of(seen))
    np.testing.assert_allclose(found, peak_bytes(seen), rtol=0.02)


def test_there_is_no_sum_for_what_is_none():
    """Nor for an implementation that was never measured, or only a few times."""
    seen = list(problems(60))
    noise = np.exp(np.random.default_rng(0).normal(0, 1, 60))
    assert not fit_sums(SPEC, rows_of(seen), peak_bytes(seen) * noise).predict(rows_of(seen)).any()
    few = fit_sums(SPEC, rows_of(seen[:5]), peak_bytes(seen[:5]))
    assert not few.predict(rows_of(seen)).any()
    assert not fit_sums(SPEC, rows_of(seen), peak_bytes(seen)).predict(rows_of(seen, "padded")).any()


def test_the_rest_answers_where_there_is_no_sum():
    seen = list(problems(60))
    rows = np.concatenate([rows_of(seen), rows_of(seen[:5], "padded")])
    figures = np.concatenate([peak_bytes(seen), 3 * peak_bytes(seen[:5])])
    model = MemoryModel(SPEC, CostModel(max_iter=50)).fit(rows, figures)
    found = model.predict(rows)
    np.testing.assert_allclose(found[:60], figures[:60], rtol=0.02)
    np.testing.assert_array_equal(found[60:], model.rest.predict(rows[60:]))
    np.testing.assert_allclose(flat(model.rest, model.sums_).predict(rows), found, rtol=1e-12)


def test_sums_are_the_same_from_arrays_and_one_by_one():
    seen = list(problems(60))
    rows = rows_of(seen)
    sums = fit_sums(SPEC, rows, peak_bytes(seen))
    again = Sums.from_arrays(sums.arrays("memory"), "memory", rows.shape[1])
    each = [again.predict(rows[[number]])[0] for number in range(len(rows))]
    np.testing.assert_array_equal(sums.predict(rows), each)
    assert sums.predict(rows[:0]).shape == (0,)


@pytest.mark.parametrize("terms", [3, 8, 35])
def test_many_rows_have_the_sums_of_each_to_the_last_digit(terms):
    """However many terms a sum has; 0 where none was found, or for another implementation."""
    draw = np.random.default_rng(terms)
    weights = draw.uniform(1, 2, (6, terms)) * (np.arange(terms) < draw.integers(1, terms + 1, 6)[:, None])
    weights[3] = 0
    products = draw.integers(0, 4, (6, terms, 3)).astype(np.int16)
    products[4] = 0
    factors = [Factor.ONE, Factor.SIZE, Factor.VALUE, Factor.SET]
    kinds_of, columns = np.array(factors, dtype=np.int8), np.array([0, 4, 5, 4], dtype=np.int32)
    sums = Sums(kinds_of, columns, np.array([0, 1, 2], dtype=np.int32), np.array(3), products, weights)
    flags = np.eye(4)[draw.integers(0, 4, 2 * FEW)]  # the last implementation is not among them
    flags[:, 3] = draw.integers(0, 2, len(flags))
    rows = np.hstack([flags, draw.normal(size=(len(flags), 2))])
    each = np.array([sums.predict(rows[[number]])[0] for number in range(len(rows))])
    np.testing.assert_array_equal(sums.predict(rows), each)
    assert 0 < np.count_nonzero(each) < len(rows)


def test_errors_in_memory_are_by_situation():
    """Exact in training and uncertain in inference: the one does not widen the other."""
    which = list(replay.problems(layers=(1,), seq=(10, 50), mode=("inference", "training")))[::3]
    dataset = build_dataset(registry.operator("lstm"), replay.sweep(which), [replay.HERE])
    assert dataset.situations == ("cpu inference", "cpu training")
    exact = np.where(dataset.situation == "cpu inference", 0.5, 1.0)
    held_out = HeldOut(
        fold=np.zeros(len(exact), dtype=np.int64),
        time_ms=dataset.time_ms,
        memory_bytes=dataset.memory_bytes * exact,
    )
    for found in errors(dataset, held_out).values():
        assert found["memory"]["cpu training"]["safe"] < 1.01
        assert found["memory"]["cpu inference"]["safe"] > 2
