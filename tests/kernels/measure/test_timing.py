import gc
import time
from dataclasses import replace

import pytest

from kernel_selector.kernels.measure import QUICK, THOROUGH, UnknownPolicy, policy
from kernel_selector.kernels.measure.clock import HostClock
from kernel_selector.kernels.measure.policies import STEADY
from kernel_selector.kernels.measure.timing import MOST_TRIES, Contestant, interleave, timing


class ScriptedClock:
    """Says how long each run took, from the run itself; keeps who ran when."""

    host_counts = True

    def __init__(self):
        self.calls = []
        self.settled = 0

    def settle(self):
        self.settled += 1

    def calm(self):
        return True

    def burst(self, run, first, count):
        self.calls.append((run, count))
        return [(run(index, None),) for index in range(first, first + count)]


def steady(milliseconds):
    return lambda _index, _mark: milliseconds


def reraise(_name, error):
    raise error


def compete(*contestants, policy=QUICK, clock=None, before=lambda _name: None, failed=reraise):
    clock = clock or ScriptedClock()
    interleave(contestants, clock, policy, seed=0, before=before, failed=failed)


def test_percentiles():
    result = timing([5.0, 1.0, 3.0, 2.0, 4.0])
    assert (result.p20_ms, result.p50_ms, result.p80_ms) == pytest.approx((1.8, 3.0, 4.2))
    assert result.raw_ms == (5.0, 1.0, 3.0, 2.0, 4.0)
    assert timing([7.0]).p20_ms == timing([7.0]).p80_ms == 7.0
    assert timing([0.0]).p50_ms > 0


def test_the_host_is_waited_for_before_each_burst_and_at_no_cost_of_the_candidate():
    class Slow(ScriptedClock):
        def settle(self):
            super().settle()
            time.sleep(2 * QUICK.candidate_budget_ms / 1e3)

    clock, contestant = Slow(), Contestant("a", steady(2.0))
    compete(contestant, clock=clock, policy=replace(QUICK, relative_spread=0, max_samples=4))
    assert len(contestant.laps) == 4
    assert clock.settled == 2  # of two runs each; none before the warm-up
    assert contestant.spent_ms < QUICK.candidate_budget_ms


def test_no_core_is_looked_for_where_the_host_does_not_count():
    class OfTheDevice(ScriptedClock):
        host_counts = False

        def calm(self):
            raise AssertionError

    clock, contestant = OfTheDevice(), Contestant("a", steady(2.0))
    compete(contestant, clock=clock, policy=replace(QUICK, relative_spread=0, max_samples=8))
    assert len(contestant.laps) == 8
    assert clock.settled == 1  # before the first burst nobody knows


@pytest.mark.parametrize(("calm", "bursts"), [([True], 1), ([False, True], 2), ([False] * 9, MOST_TRIES)])
def test_a_burst_is_taken_again_when_the_host_became_slow(calm, bursts):
    class Disturbed(ScriptedClock):
        def calm(self):
            return answers.pop(0)

    clock, answers, taken = Disturbed(), list(calm), []
    contestant = Contestant("a", lambda _index, _mark: taken.append(1.0 + len(taken)) or taken[-1])
    policy = replace(QUICK, warmup_ms=0, burst_samples=1, min_samples=1, max_samples=1)
    compete(contestant, clock=clock, policy=policy)
    assert contestant.laps == [(float(bursts),)]  # of the last burst alone
    assert clock.settled == bursts


def test_a_steady_candidate_stops_early():
    contestant = Contestant("a", steady(0.5))
    compete(contestant)
    assert 4 * QUICK.min_samples <= len(contestant.laps) < QUICK.max_samples


def test_a_noisy_candidate_goes_on_until_its_samples_are_spent():
    contestant = Contestant("a", lambda index, _mark: 0.1 if index % 2 else 0.5)
    compete(contestant)
    assert len(contestant.laps) == QUICK.max_samples


def test_a_slow_candidate_stops_when_its_budget_is_spent():
    def slow(_index, _mark):
        time.sleep(0.03)
        return 30.0

    contestant = Contestant("a", slow)
    compete(contestant)
    assert QUICK.min_samples <= len(contestant.laps) <= 4


def test_two_samples_of_a_very_long_run_are_enough():
    long, short = Contestant("long", steady(2_001)), Contestant("short", steady(1_999))
    compete(long, short, policy=replace(QUICK, warmup_ms=0, candidate_budget_ms=0))
    assert (len(long.laps), len(short.laps)) == (2, 3)


def test_the_first_runs_are_no_samples():
    """They load and plan, and one that is long by that must not spend the budget."""
    times = iter([500.0, 30.0])
    contestant = Contestant("a", lambda index, _mark: next(times, 0.5 + index % 3))
    compete(contestant, policy=replace(QUICK, warmup_ms=1e-6))
    assert [laps[-1] for laps in contestant.laps].count(30.0) == 1  # after one long run none is spent
    assert contestant.median_ms == 1.5
    assert contestant.spent_ms < 30


def test_runs_ahead_of_a_burst_are_not_counted():
    """Only the first runs after a pause are slow, as where the host has to get ahead of the device."""
    since = []

    class Pausing(ScriptedClock):
        def burst(self, run, first, count):
            since.clear()
            return super().burst(run, first, count)

    def run(_index, _mark):
        since.append(None)
        return 1.0 if len(since) <= 2 else 0.2

    contestant, clock = Contestant("a", run), Pausing()
    compete(contestant, policy=replace(STEADY, lead_ms=0.5), clock=clock)
    assert {laps[-1] for laps in contestant.laps[1:]} == {0.2}
    assert max(count for _, count in clock.calls) == STEADY.burst_samples + 3


def noisy(milliseconds):
    """Within a tenth, so that nobody is done by being steady."""
    return lambda index, _mark: milliseconds * (0.9 + 0.05 * (index % 5))


def test_those_near_the_best_get_more_samples():
    policy = replace(STEADY, candidate_budget_ms=1e-9)
    times = {"best": 1.0, "close": 1.1, "slower": 2.0, "far": 3.5}
    contestants = {name: Contestant(name, noisy(value)) for name, value in times.items()}
    names = []
    compete(*contestants.values(), policy=policy, before=names.append)
    counts = {name: len(one.laps) for name, one in contestants.items()}
    assert counts["best"] >= policy.close_samples <= counts["close"]
    assert policy.min_samples <= counts["slower"] <= policy.burst_samples
    assert 2 <= counts["far"] <= policy.burst_samples
    # in turns, not all of one and then all of the other
    last = [name for name in names if name in ("best", "close")][2:]
    assert all(sorted(last[at : at + 2]) == ["best", "close"] for at in range(0, len(last), 2))


def test_more_samples_have_a_budget_of_their_own():
    def slow(_index, _mark):
        time.sleep(0.01)
        return 10.5

    contestants = [Contestant("a", slow), Contestant("b", slow)]
    compete(*contestants, policy=replace(STEADY, close_budget_ms=80))
    assert all(one.spent_ms >= 80 and len(one.laps) < 12 for one in contestants)


def test_two_samples_are_enough_far_from_the_best():
    best, far = Contestant("best", noisy(5.0)), Contestant("far", noisy(20.0))
    compete(best, far, policy=replace(STEADY, candidate_budget_ms=1e9))
    assert len(best.laps) >= 20
    assert len(far.laps) == 2


def test_one_alone_has_no_contest():
    alone, failing = Contestant("alone", noisy(1.0)), Contestant("failing", noisy(1.0), failed=True)
    compete(alone, failing, policy=replace(STEADY, candidate_budget_ms=1e9))
    assert len(alone.laps) < STEADY.close_samples


def test_rounds_are_interleaved():
    # noisy, so that none stops before the last round
    contestants = [Contestant(name, lambda index, _mark: 1.0 + index % 3) for name in "abc"]
    names = []
    compete(*contestants, before=names.append)
    rounds = [names[at : at + 3] for at in range(0, len(names), 3)]
    assert all(sorted(one) == ["a", "b", "c"] for one in rounds[:5])
    assert len({tuple(one) for one in rounds}) > 1


def test_one_that_raises_does_not_stop_the_others():
    def broken(_index, _mark):
        raise SystemExit(3)

    good, bad = Contestant("good", steady(1.0)), Contestant("bad", broken)
    errors = []
    compete(bad, good, failed=lambda name, error: errors.append((name, str(error))))
    assert errors == [("bad", "3")]
    assert bad.failed
    assert not good.failed
    assert len(good.laps) >= QUICK.min_samples


def test_a_failure_can_end_the_timing_of_all():
    """As when the GPU answers nobody any more: the others must not be charged with it."""

    def broken(_index, _mark):
        raise ValueError("sticky")

    later = Contestant("later", steady(1.0))
    with pytest.raises(ValueError, match="sticky"):
        compete(Contestant("bad", broken), later)
    assert not later.laps
    assert gc.isenabled()


def test_garbage_is_not_collected_in_between():
    seen = []

    def run(_index, _mark):
        seen.append(gc.isenabled())
        return 1.0

    compete(Contestant("a", run))
    assert not any(seen)
    assert gc.isenabled()


def test_the_host_clock_gives_laps_in_milliseconds():
    def run(_index, mark):
        time.sleep(0.002)
        mark()
        time.sleep(0.003)

    laps = HostClock().burst(run, 0, 2)
    assert len(laps) == 2
    for forward, total in laps:
        assert 2.0 <= forward <= total - 3.0


def test_input_sets_rotate():
    indices = []
    HostClock().burst(lambda index, _mark: indices.append(index), 5, 3)
    assert indices == [5, 6, 7]


def test_the_harness_costs_less_than_two_microseconds_a_run():
    contestant = Contestant("a", lambda _index, mark: mark())
    compete(contestant, policy=replace(QUICK, max_samples=400, relative_spread=0.0), clock=HostClock())
    assert timing([laps[-1] for laps in contestant.laps]).p50_ms < 0.002


def test_policies_by_name():
    assert policy("quick") is QUICK
    assert policy("thorough") is THOROUGH
    with pytest.raises(UnknownPolicy, match="Did you mean 'quick'"):
        policy("quik")
