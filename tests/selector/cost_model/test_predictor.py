"""A stored model: what it answers, where it extrapolates and abstains, and which ones are refused."""

from dataclasses import replace

import pytest

from kernel_selector.db import Database, models, records
from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device
from selector import ModelVersionMismatch, Selector
from selector.cost_model.domain import LEAST_GAIN_OF_WIDTH, UNSEEN_WIDTH, seen_alike
from selector.cost_model.estimate import LEAST_GAIN, WIDER_TIME, Estimate
from selector.cost_model.least_times import least_ms
from selector.cost_model.predictor import Predictor
from selector.selection.shipped import unpacked
from tests.selector import replay

LSTM = registry.operator("lstm")
IMPLEMENTATIONS = registry.implementations("lstm")


@pytest.fixture(scope="module")
def stored(trained_file):
    with Database.open(trained_file) as database, database.read() as connection:
        return models.latest(connection, operator="lstm")


@pytest.fixture(scope="module")
def predictor(stored):
    return Predictor(stored, LSTM)


def test_model_answers_what_was_not_measured(trained):
    choice = trained.choose(hidden=96, batch=24)
    assert choice.source == "model"
    assert choice.model_version
    candidates = [item for item in choice.candidates if not item.excluded]
    truth = {item.name: replay.true_time_ms(choice.problem, item.name) for item in candidates}
    assert truth[choice.implementation] <= 1.15 * min(truth.values())
    for item in candidates:
        assert item.time_interval_ms[0] <= item.time_ms <= item.time_interval_ms[1]
        assert item.memory_interval_bytes[0] <= item.memory_bytes <= item.memory_interval_bytes[1]


def test_memory_limit_counts_with_the_uncertainty(trained):
    free = trained.choose(hidden=96, batch=24)
    limit = (free.memory_bytes + free.memory_interval_bytes[1]) // 2
    bound = trained.choose(hidden=96, batch=24, memory=limit)
    reason = next(item.excluded for item in bound.candidates if item.name == free.implementation)
    assert "predicted, upper end" in reason


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_dtypes_of_a_width_that_was_not_seen_get_figures_and_hardly_a_switch(trained, dtype):
    seen, choice = trained.choose(hidden=96, batch=8), trained.choose(hidden=96, batch=8, dtype=dtype)
    assert choice.source == "extrapolated"
    assert any(f"from dtype=float32 instead of {dtype}" in caveat for caveat in choice.caveats)
    low, high = choice.time_interval_ms
    least, most = seen.time_interval_ms
    assert high / low > 2 ** (2 * WIDER_TIME * UNSEEN_WIDTH) * 0.99
    assert low < choice.time_ms < high
    assert most / least < high / low
    figures = {one.name: one.time_ms for one in choice.candidates if one.time_ms}
    if choice.implementation != LSTM.default:
        assert figures[LSTM.default] / choice.time_ms - 1 > LEAST_GAIN_OF_WIDTH


WORDS = [{"bias": False}, {"batch_first": True}, {"packed": True}, {"dropout": 0.3}, {"peepholes": True}]


@pytest.mark.parametrize("words", [*WORDS, {"batch_first": True, "dropout": 0.3, "bidirectional": True}])
def test_words_that_were_not_seen_are_extrapolated_from_those_that_were(trained, words):
    """Every candidate that was predicted has a figure, times the ratio of counted work."""
    given = {"hidden": 96, "batch": 24, "layers": 2}
    seen, choice = trained.choose(**given), trained.choose(**given, **words)
    assert choice.source == "extrapolated"
    caveat = next(caveat for caveat in choice.caveats if caveat.startswith("Extrapolated: from"))
    assert all(f"{name}=" in caveat for name in words)
    known = {item.name: item.time_ms for item in seen.candidates}
    for item in choice.candidates:
        if item.time_ms is None:
            continue
        assert item.time_interval_ms[0] < item.time_ms < item.time_interval_ms[1]
        assert item.time_ms < (2.5 if "bidirectional" in words else 1.5) * known[item.name]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"hidden": 4096, "batch": 8}, "hidden=4096 is outside"),
        ({"hidden": 96, "batch": 5000}, "batch=5000 is outside"),
        ({"hidden": 700, "batch": 150, "seq": 200}, "operations="),
    ],
)
def test_sizes_that_were_not_seen_are_extrapolated(trained, given, words):
    """Every candidate has a figure, with wider intervals, and the first caveat says why."""
    inside, outside = trained.choose(hidden=96, batch=24), trained.choose(**given)
    assert outside.source == "extrapolated"
    assert words in outside.caveats[0]
    assert outside.model_version
    by_name = {one.name: one for one in inside.candidates}
    for candidate in outside.candidates:
        if not candidate.excluded:
            low, high = candidate.time_interval_ms
            least, most = by_name[candidate.name].time_interval_ms
            assert high / low > 1.5 * most / least
            assert candidate.memory_interval_bytes[1] > candidate.memory_bytes


def test_no_time_is_extrapolated_to_less_than_bytes_and_operations_take(monkeypatch):
    with Database.open(unpacked()) as database, database.read() as connection:
        stored = models.latest(connection, operator="rms_norm")
        device = next(one for one in records.devices(connection) if one.key == "nvidia-h200")
    operator, known = registry.operator("rms_norm"), registry.implementations("rms_norm")
    predictor, names = Predictor(stored, operator), ("fused", "torch_rms_norm")
    short = Estimate(1e-3, 1e-4, 1e-2, 100, 90, 110, 0.01, 0.01)
    said = dict.fromkeys(names, short)
    monkeypatch.setattr(predictor, "_estimates", lambda asked, *_: [said] * len(asked))
    problems = [
        operator.problem({"rows": rows, "hidden": 4096, "dtype": "bfloat16"}) for rows in (4096, 2**26)
    ]
    inside, outside = predictor.tiers(problems, [names] * 2, device=device, software=None, known=known)
    assert (inside.source, outside.source) == ("model", "extrapolated")
    assert inside.estimates == said
    for name, one in outside.estimates.items():
        least = least_ms(known[name].work(problems[1]), device)
        assert one.time_ms >= least > 100
        assert one.high_ms > 10 * one.time_ms


def test_a_switch_needs_a_larger_gain_where_it_is_extrapolated(trained):
    wide = trained.choose(hidden=4096, batch=8)
    figures = {one.name: one.time_ms for one in wide.candidates if one.time_ms}
    if wide.implementation != LSTM.default:
        assert figures[LSTM.default] / figures[wide.implementation] - 1 > LEAST_GAIN
    estimate = Estimate(1.0, 0.9, 1.1, 100, 90, 110, 0.01, 0.01)
    assert estimate.extrapolated(2.0).noise == LEAST_GAIN
    assert estimate._replace(noise=0.3).extrapolated(2.0).noise == 0.3


def test_the_model_goes_before_the_nearest_problem(trained):
    problem = next(iter(trained.evidence("lstm", replay.HERE.key).problems.values()))
    near = problem.as_dict | {"seq": problem["seq"] + 1}
    assert trained.evidence("lstm", replay.HERE.key).near(LSTM.problem(near), replay.HERE, None)
    assert trained.choose(**near).source == "model"


@pytest.mark.parametrize(
    ("seen", "nearest"),
    [(["bfloat16", "float32"], "bfloat16"), (["float32", "float64"], "float32"), (["float16"], "float16")],
)
def test_a_dtype_of_the_same_width_stands_for_one_that_was_not_seen_before_another(seen, nearest):
    problem = LSTM.problem(hidden=96, batch=8, dtype="float16", mode="training")
    alike = seen_alike(problem, {"dtype": seen, "mode": ["inference"]})
    assert alike == LSTM.problem({**problem.as_dict, "dtype": nearest})


def test_unknown_device_abstains(trained):
    choice = trained.choose(hidden=96, batch=8, device=Device(name="Unseen GPU", kind="cuda"))
    assert choice.source == "default"
    assert any("has not seen Unseen GPU" in caveat for caveat in choice.caveats)


def test_of_an_unknown_device_nothing_is_counted(predictor, monkeypatch):
    monkeypatch.setattr("selector.cost_model.predictor.FeatureSpec.matrices", None)
    unseen = Device(name="Unseen GPU", kind="cuda")
    tier = predictor.tier(LSTM.problem(hidden=96, batch=8), unseen, None, IMPLEMENTATIONS)
    assert not tier.estimates
    assert "has not seen Unseen GPU" in tier.caveats[0]


def test_changed_implementation_has_no_prediction(predictor):
    changed = {**IMPLEMENTATIONS, "hoisted": replace(IMPLEMENTATIONS["hoisted"], version="new")}
    tier = predictor.tier(LSTM.problem(hidden=96, batch=8), replay.HERE, replay.SOFTWARE, changed)
    assert set(tier.estimates) == set(replay.ON_CPU) - {"hoisted"}
    assert any("hoisted" in caveat for caveat in tier.caveats)


def test_other_software_and_host_are_said(predictor):
    problem = LSTM.problem(hidden=96, batch=8)
    host, software = replace(replay.HERE, host="Other"), replace(replay.SOFTWARE, torch="9")
    caveats = predictor.tier(problem, host, software, IMPLEMENTATIONS).caveats
    assert any("not Other" in caveat for caveat in caveats)
    assert any("torch 2.13.0 instead of 9" in caveat for caveat in caveats)


@pytest.mark.parametrize(
    "change",
    [
        {"schema": 99},
        {"arrays": b"0" * 100},
        {"manifest": {}},
        {"manifest": {"features": ["other"]}},
    ],
)
def test_models_of_other_versions_are_refused(stored, change):
    if "manifest" in change:
        change = {"manifest": {**stored.manifest, **change["manifest"]} if change["manifest"] else {}}
    with pytest.raises(ModelVersionMismatch, match=r"Run `selector train lstm`"):
        Predictor(replace(stored, **change), LSTM)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("earlier", [False, True])
def test_a_refused_model_is_skipped_with_an_earlier_one_or_without_any(stored, sqlite_database, earlier):
    with sqlite_database.write() as connection:
        for schema in (*([stored.schema] if earlier else ()), 99, 99):
            models.add(connection, model=replace(stored, schema=schema))
    selector = Selector(sqlite_database)
    choice = selector.choose(hidden=96, batch=8)
    assert choice.model_version == (stored.version if earlier else None)
    (caveat,) = (one for one in choice.caveats if "latest cost model is not used" in one)
    assert "Run `selector train lstm`" in caveat
    assert list(selector.status()["refused"]) == ["lstm"]


def test_manifest_says_what_it_was_learned_from(stored):
    manifest = stored.manifest
    assert manifest["rows"] == manifest["problems"] * len(manifest["implementations"])
    assert manifest["implementations"]["hoisted"] == IMPLEMENTATIONS["hoisted"].version
    assert list(manifest["devices"]) == [replay.HERE.key]
    assert manifest["snapshot"] != "none"
    assert manifest["sklearn"]
    assert stored.evaluation["comparisons"]
