"""The rule that decides, on estimates made by hand."""

import pytest

from selector import NothingFits
from selector.cost_model.estimate import Estimate, Tier
from selector.selection.policy import LEAST_MARGIN, Question, combine, decide, least_gain


def estimate(time_ms, memory=100, *, noise=0.0, high=None, memory_noise=0.0):
    return Estimate(
        time_ms=time_ms,
        low_ms=time_ms * 0.9,
        high_ms=time_ms * 1.1,
        memory_bytes=memory,
        low_bytes=memory,
        high_bytes=high or memory,
        noise=noise,
        memory_noise=memory_noise,
    )


def tier(source, *, caveats=(), **times):
    estimates = {name: item if isinstance(item, Estimate) else estimate(item) for name, item in times.items()}
    return Tier(source=source, estimates=estimates, caveats=caveats)


def question(*names, **more):
    return Question(
        **{"default": "base", "excluded": {}, "counted_bytes": lambda _: 10.0, **more},
        names=names,
    )


def decided(asked, *tiers):
    return decide(asked, combine(tiers, asked.names, asked.default))


def test_base_is_the_best_tier_with_the_default_and_another():
    exact, model = tier("exact", base=2.0), tier("model", base=3.0, fast=1.0)
    figures = combine([exact, model], ("base", "fast"), "base")
    assert figures.base == "model"
    assert figures.estimates["base"].time_ms == 3.0


def test_candidates_outside_the_base_take_the_next_tier():
    tiers = tier("exact", base=2.0, fast=1.5), tier("model", base=9.0, fast=9.0, new=1.0)
    decision = decided(question("base", "fast", "new"), *tiers)
    assert (decision.implementation, decision.source) == ("new", "model")
    assert {item.name: item.time_ms for item in decision.candidates} == {"new": 1.0, "fast": 1.5, "base": 2.0}


def test_no_tier_is_asked_for_that_is_not_needed():
    def tiers():
        yield tier("exact", base=2.0, fast=1.5)
        raise AssertionError("asked for more evidence than needed")

    assert combine(tiers(), ("base", "fast"), "base").base == "exact"


def test_default_without_comparable_evidence_still_shows_figures():
    decision = decided(question("base", "fast"), tier("exact", fast=1.0))
    assert (decision.implementation, decision.source) == ("base", "default")
    assert {item.name: item.time_ms for item in decision.candidates} == {"base": None, "fast": 1.0}


@pytest.mark.parametrize("gain", [0.0, LEAST_MARGIN, 0.0099])
def test_ties_go_to_the_default(gain):
    decision = decided(question("a", "base"), tier("exact", a=1.0, base=1.0 + gain - 1e-9))
    assert decision.implementation == "base"


def test_uncertain_leader_yields_to_a_sure_second():
    uncertain, sure = estimate(1.0, noise=2.0), estimate(1.2, noise=0.01)
    decision = decided(question("base", "lead", "sure"), tier("model", base=2.0, lead=uncertain, sure=sure))
    assert decision.implementation == "sure"
    note = next(item.note for item in decision.candidates if item.name == "lead")
    assert "within the noise of 200.0%" in note


def test_memory_limit_counts_the_upper_end():
    heavy = estimate(1.0, memory=90, high=120)
    asked = question("base", "heavy", limit_bytes=100)
    decision = decided(asked, tier("model", base=estimate(2.0, memory=50), heavy=heavy))
    assert decision.implementation == "base"
    assert "predicted, upper end" in decision.candidates[-1].excluded


def test_excluded_default_needs_no_margin():
    asked = question("a", "b", excluded={"base": "ran out of memory"})
    decision = decided(asked, tier("exact", a=1.0, b=0.999))
    assert decision.implementation == "b"
    assert decision.candidates[-1].excluded == "ran out of memory"


def test_everything_failed_leaves_the_default_with_a_caveat():
    decision = decided(question(excluded={"base": "crashed", "fast": "crashed"}))
    assert (decision.implementation, decision.source) == ("base", "default")
    assert any("Every candidate is excluded" in caveat for caveat in decision.caveats)


def test_the_default_has_its_figure_where_everything_failed():
    asked = question(excluded={"base": "gave wrong results", "fast": "crashed"})
    decision = decide(asked, combine([tier("near", base=3.0, fast=1.0)], asked.estimated, asked.default))
    assert (decision.implementation, decision.candidates[0].time_ms) == ("base", 3.0)
    assert [one.time_ms for one in decision.candidates[1:]] == [None]


def test_counted_bytes_stand_in_for_measurements():
    with pytest.raises(NothingFits, match=r"least is 10 bytes.*counted"):
        decided(question("base", "fast", limit_bytes=5))
    decision = decided(question("base", "fast", limit_bytes=50))
    assert any("counted bytes only" in caveat for caveat in decision.caveats)


def test_memory_objective_keeps_the_default_within_the_noise():
    small = estimate(1.0, memory=95, memory_noise=0.1)
    asked = question("base", "small", objective="memory")
    assert decided(asked, tier("model", base=estimate(1.0, memory=100), small=small)).implementation == "base"


def test_margin_is_negative_when_the_runner_up_looks_better():
    decision = decided(question("a", "base"), tier("exact", a=0.995, base=1.0))
    assert decision.runner_up == "a"
    assert decision.margin == pytest.approx(-0.005)


def test_a_switch_must_gain_more_than_any_of_the_noise() -> None:
    assert least_gain() == least_gain(0.0, LEAST_MARGIN / 2) == LEAST_MARGIN
    assert least_gain(0.0, 3 * LEAST_MARGIN) == 3 * LEAST_MARGIN
