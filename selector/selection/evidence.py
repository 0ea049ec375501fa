"""Measurements of one operator on one kind of device, in memory, arranged for questions.

The evidence about a problem comes in tiers: measured here as it is now, measured under other circumstances
(other host, software, or an earlier version of an implementation), and measured on one neighbouring problem.
All figures of a tier were taken under the same circumstances, so they compare.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import datetime
from functools import cached_property
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device, Environment, Integer, Problem, Record, Status
from kernel_selector.kernels.contract.record import LAUNCHED

from ..cost_model.domain import differences, seen_alike, unlike, words_of
from ..cost_model.estimate import Estimate, Tier
from ..cost_model.features.work_ratios import work_ratios
from .host_shares import HostShares
from .neighbours import (
    MAX_DISTANCE,
    Good,
    Neighbours,
    Similar,
    Words,
    distance,
    is_no_smaller,
    structure,
    without_sizes,
)
from .records import FAILURES, WORDS, Measured, Possible, Setting

if TYPE_CHECKING:
    from kernel_selector.db import Figures

# two implementations cannot be told apart on one machine by less than this on another: what was up to 14 %
# faster on one processor made models slower on others. Of the problems measured on an H200 and on a processor
# 7 and 9 % have a winner by less than this, and the default there loses 0.5 % of time in the mean
OTHER_MACHINE = 0.15
# an implementation that was wrong at this share of problems, and at so many, is expected to be so at other
# sizes: of what ships, each measurement foretold by the others, 619 of those found so were wrong and 31 right
MOSTLY_WRONG, LEAST_WRONG = 0.75, 8


Group = dict[str, Measured]  # by implementation
Groups = Mapping[tuple[str, str, str], Group]  # by circumstances
Failure = tuple[Problem, Setting, str, Measured]


class Others(NamedTuple):
    """Records of some problems, arranged as in Evidence: those that are as they were."""

    problems: Mapping[str, Problem]
    groups: Mapping[str, dict[tuple[str, str, str], Group]]
    settings: Mapping[tuple[str, str, str], Setting]
    left_out: Mapping[str, int]
    waiting: Mapping[str, int]
    apart: Mapping[str, Others] = MappingProxyType({})  # of other regimes


NO_OTHERS = Others({}, {}, {}, {}, {})


class Evidence:
    """The records of one operator on one kind of device (all hosts that have it), of one regime.

    Those of other regimes than launched lie apart (`in_regime`): nothing here, and no cost model, sees them.
    `versions` are those of its implementations now, by name; `groups` has what was measured, by the problem's
    key and its circumstances, and `failed` what failed, by structure; `left_out` counts records of impossible
    problems by the problem's key. What is no implementation any more is passed over. `rejected` are verdicts
    of the gate by themselves: they count among what failed, and are no measurements. `shipped` says whether
    the records came with this package; `waiting` is how many are left out by the key of a problem, because
    nobody agrees. `others` are problems that the records are not of, as an earlier evidence has them.
    """

    def __init__(
        self,
        records: Iterable[Record | Figures],
        versions: Mapping[str, str],
        rejected: Iterable[Record] = (),
        *,
        shipped: bool = False,
        waiting: Mapping[str, int] = MappingProxyType({}),
        others: Others = NO_OTHERS,
        regime: str = LAUNCHED,
    ) -> None:
        self.versions = versions
        self.shipped = shipped
        self.waiting = {**others.waiting, **waiting}
        self.rejected = tuple(rejected)
        self.settings: dict[tuple[str, str, str], Setting] = dict(others.settings)
        self.problems: dict[str, Problem] = dict(others.problems)
        self.groups: dict[str, dict[tuple[str, str, str], Group]] = defaultdict(dict, others.groups)
        self.failed: dict[tuple[object, ...], list[Failure]] = defaultdict(list)
        apart: dict[str, list[Record | Figures]] = defaultdict(list)
        possible = Possible(self._of_regime(regime, records, apart))
        for record in possible:
            self._add(record)
        self._apart = {
            name: Evidence(
                apart[name], versions, shipped=shipped, others=others.apart.get(name, NO_OTHERS), regime=name
            )
            for name in {*apart, *others.apart}
        }
        self.left_out = possible.left_out + Counter(others.left_out)
        self._note_failures()
        for record in self.rejected:
            setting = Setting(record.device, record.environment, record.policy)
            measured = Measured.of(record, versions.get(record.implementation))
            self._note_failure((record.problem, setting, record.implementation, measured))
        self._values = {problem.values for problem in self.problems.values()}

    def _of_regime(
        self, regime: str, records: Iterable[Record | Figures], apart: dict[str, list[Record | Figures]]
    ) -> Iterator[Record | Figures]:
        """The records of a regime that are of implementations as they are; those of others go to `apart`."""
        for one in records:
            if one.regime != regime:
                apart[one.regime].append(one)
            elif one.implementation in self.versions:
                yield one

    def in_regime(self, regime: str) -> Evidence:
        """The records of another regime; all of these where it is `launched`."""
        if regime == LAUNCHED:
            return self
        found = self._apart.get(regime)
        return Evidence((), self.versions, shipped=self.shipped, regime=regime) if found is None else found

    def others(self, keys: Collection[str]) -> Others:
        """Records of all problems but those with these keys."""

        def rest(of_all: Mapping[str, Any]) -> dict[str, Any]:
            return {key: one for key, one in of_all.items() if key not in keys}

        groups = rest(self.groups)
        used = {key: self.settings[key] for group in groups.values() for key in group}
        apart = {regime: one.others(keys) for regime, one in self._apart.items()}
        return Others(rest(self.problems), groups, used, rest(self.left_out), rest(self.waiting), apart)

    @property
    def ships(self) -> Evidence | None:
        """The part that came with this package: all of it, or none."""
        return self if self.shipped else None

    @cached_property
    def _words(self) -> dict[str, list[Any]]:
        """The values that were measured of what is no size; looked at where nothing better is known."""
        return words_of(list(self.problems.values()))

    @cached_property
    def _neighbours(self) -> Neighbours:
        """The problems for the nearest one to be found; looked at where nothing better is known."""
        return Neighbours(self.problems.values())

    @cached_property
    def host_shares(self) -> HostShares:
        """The host's shares of the times; looked at where these are carried over to another device."""
        return self._shares_of(lambda _: True)

    def host_shares_in(self, host: str) -> HostShares:
        """The same of what was measured in one host alone."""
        if host not in self._shares_by_host:
            self._shares_by_host[host] = self._shares_of(lambda setting: setting.device.host == host)
        return self._shares_by_host[host]

    @cached_property
    def _shares_by_host(self) -> dict[str, HostShares]:
        return {}

    def _shares_of(self, counts: Callable[[Setting], bool]) -> HostShares:
        return HostShares(
            (problem, name, one.estimate.time_ms)
            for problem in self.problems.values()
            for key, group in self.measured_at(problem).items()
            if counts(self.settings[key])
            for name, one in group.items()
            if one.estimate is not None
        )

    def _add(self, record: Record | Figures) -> None:
        setting = Setting(record.device, record.environment, record.policy)
        setting = self.settings.setdefault(setting.key, setting)
        problem = self.problems.setdefault(record.problem.key, record.problem)
        group = self.groups[problem.key].setdefault(setting.key, {})
        measured = Measured.of(record, self.versions.get(record.implementation), shipped=self.shipped)
        before = group.get(record.implementation)
        if before is None or before.measured_at <= measured.measured_at:
            group[record.implementation] = measured

    def _note_failures(self) -> None:
        """Of the newest records alone: what was measured again and worked has not failed.

        In the order of the problems' keys, so that what is said first does not depend on when it was stored.
        """
        failed = [
            (problem.key, (problem, self.settings[key], name, measured))
            for problem in self.problems.values()
            for key, group in self.groups[problem.key].items()
            for name, measured in group.items()
            if measured.status in FAILURES
        ]
        for _, failure in sorted(failed, key=lambda one: one[0]):
            self._note_failure(failure)

    def _note_failure(self, failure: Failure) -> None:
        """Where it is of the implementation as it is now."""
        problem, _, name, measured = failure
        if measured.version == self.versions.get(name):
            self.failed[structure(problem)].append(failure)

    def least_noise(self, here: Device, *, shipped: bool = False) -> float:  # noqa: ARG002 - all of it is or is not
        """Least difference that a model of these records can tell `here`: 0 if some are of this machine.

        shipped: whether that model came with this package.
        """
        known = self.settings.values()
        return OTHER_MACHINE if known and not any(_same_host(one, here) for one in known) else 0.0

    def measured(self, problem: Problem, here: Device, software: Environment | None) -> Iterator[Tier]:
        """The tiers of a problem's own measurements, best first."""
        rank, settings, groups = self._rank, self.settings, self.measured_at(problem)
        tiers = [(rank(settings[key], group, here, software), key, group) for key, group in groups.items()]
        tiers.sort(key=lambda item: item[:2], reverse=True)
        for current in (True, False):
            for _, key, group in tiers:
                setting = self.settings[key]
                differences = setting.differences(here, software)
                least_noise = 0.0 if _same_host(setting, here) else OTHER_MACHINE
                tier = self._tier(problem, group, differences, current=current, least_noise=least_noise)
                if tier is not None:
                    yield tier

    def measured_at(self, problem: Problem) -> Groups:
        """Measurements of a problem, by their circumstances."""
        return self.groups[problem.key] if problem.values in self._values else {}

    @staticmethod
    def _rank(
        setting: Setting, group: Group, here: Device, software: Environment | None
    ) -> tuple[bool, bool, bool, int, datetime]:
        same_host = setting.device.fingerprint == here.fingerprint
        same_software = software is not None and setting.environment.fingerprint == software.fingerprint
        covered = sum(1 for measured in group.values() if measured.estimate)
        newest = max(measured.measured_at for measured in group.values())
        own = not all(measured.shipped for measured in group.values())
        return same_host and same_software, same_host, own, covered, newest

    def _tier(
        self, problem: Problem, group: Group, differences: list[str], *, current: bool, least_noise: float
    ) -> Tier | None:
        """Of implementations as they are; or else of all, if some were measured as they were before."""
        found = {name: item.estimate for name, item in group.items() if item.estimate is not None}
        old = {name for name in found if group[name].version != self.versions.get(name)}
        estimates = {
            name: one._replace(noise=max(one.noise, least_noise))
            for name, one in found.items()
            if not (current and name in old)
        }
        if not estimates or (not current and not old):
            return None
        caveats = [f"Measured {', '.join(differences)}."] if differences else []
        if not current:
            names = ", ".join(sorted(old))
            caveats.append(f"Measured with an earlier version of {names}: profile again to be sure.")
        shipped = frozenset([name for name in estimates if group[name].shipped])
        return Tier("exact", estimates, tuple(caveats), shipped, problem=problem)

    def near(self, problem: Problem, here: Device, software: Environment | None) -> Tier | None:
        """The tier of the nearest problem, scaled by counted work; None where nothing near was measured.

        A problem with words that nothing was measured with is looked up with the nearest ones that were.
        """
        alike = seen_alike(problem, self._words)
        if alike.values in self._values and alike != problem:
            neighbour: Problem | None = alike
        else:
            neighbour = self._neighbours.nearest(alike)
        tier = next(self.measured(neighbour, here, software), None) if neighbour else None
        if neighbour is None or tier is None:
            return None
        apart = distance(alike, neighbour) + unlike(problem, alike)
        known = {name: estimate for name, estimate in tier.estimates.items() if name in self.versions}
        ratios = work_ratios(problem, neighbour, known, here)
        estimates = {
            name: _scaled(known[name], ratio, apart) for name, ratio in zip(known, ratios, strict=True)
        }
        words = ", ".join(differences(problem, neighbour))
        return Tier(
            source="near",
            estimates=estimates,
            caveats=(f"Scaled from the measurement of {words}.", *tier.caveats),
            shipped=tier.shipped,
            doublings=apart,
            problem=neighbour,
        )

    def bounded(self, tier: Tier, problem: Problem, here: Device) -> Tier:
        """The tier of a cost model whose bytes agree with those that were measured a step away.

        Of one implementation a problem that is no smaller needs no less, and none more; and the upper end has
        room for the bytes of the nearest problem, scaled by counted work. Of 8,700 pairs of neighbours that
        ship 130 contradict the order by more than 2 %, where sizes divide otherwise, so that no estimate is
        lowered, only what is above it. Scaled bytes are within a third in 95 % of cases.
        """
        least: dict[str, int] = {}
        most: dict[str, float] = {}
        expected: dict[str, float] = {}
        for other in self._neighbours.around(problem) if tier.estimates else ():
            found = self._bytes_at(other)
            names = [name for name in tier.estimates if name in found]
            is_smaller, is_larger = is_no_smaller(problem, other), is_no_smaller(other, problem)
            wider = 2 ** (distance(problem, other) / 2)
            for name, (_, ratio) in zip(names, work_ratios(problem, other, names, here), strict=True):
                expected.setdefault(name, found[name] * ratio * wider)  # of the nearest
                least[name] = max(least.get(name, 0), found[name] * is_smaller)
                most[name] = min(most.get(name, math.inf), found[name] if is_larger else math.inf)
        estimates = {
            name: one.bounded(least[name], most[name], expected[name]) if name in expected else one
            for name, one in tier.estimates.items()
        }
        return tier._replace(estimates=estimates)

    def _bytes_at(self, problem: Problem) -> dict[str, int]:
        """The most bytes that implementations as they are now were measured to need at a problem."""
        found: dict[str, int] = {}
        for group in self.measured_at(problem).values():
            for name, one in group.items():
                if one.estimate is not None and one.version == self.versions.get(name):
                    found[name] = max(found.get(name, 0), one.estimate.memory_bytes)
        return found

    def most_similar(self, problem: Problem) -> tuple[Problem, float] | None:
        """The problem with a time that is most like one, and how far it is in doublings; None without any."""
        return self._timed.nearest(problem)

    @cached_property
    def _timed(self) -> Similar:
        """The problems with times; looked at where somebody wants to know what an answer rests on."""
        timed = [one for one in self.problems.values() if self._has_times(one)]
        specs = registry.operator(timed[0].operator).hyperparameters if timed else ()
        return Similar(timed, [spec.name for spec in specs if isinstance(spec, Integer)])

    def _has_times(self, problem: Problem) -> bool:
        groups = self.measured_at(problem).values()
        return any(one.estimate is not None for group in groups for one in group.values())

    def failures(self, problem: Problem, here: Device, default: str) -> tuple[dict[str, str], dict[str, str]]:
        """Reasons for exclusion and reasons for doubt, each by implementation.

        Excluded at the problem: by the newest record of this host. Near it: by running out of memory on a
        problem no larger in any size, unless good at one no smaller than that, or by another failure within a
        neighbour's distance; a good record at the problem outweighs that, if judged by a gate as new. Wrong
        results count on every host, and where most problems that differ in sizes alone had them. Failures
        elsewhere but those by memory make the default doubtful alone.
        """
        newest = self._newest(problem, here)
        excluded = {
            name: f"{WORDS[measured.status]} when measured: {measured.reason}"
            for name, measured in newest.items()
            if measured.status in FAILURES
        }
        doubtful: dict[str, str] = {}
        for other, setting, name, measured in self.failed_alike(problem):
            is_known = name in newest and newest[name].outweighs(measured)
            if is_known or not _counts(setting, measured, here) or not _concerns(problem, other, measured):
                continue
            if measured.status is Status.OUT_OF_MEMORY and self.good.beyond(other, name):
                continue
            kept = name == default and measured.status is not Status.OUT_OF_MEMORY
            words = f"{WORDS[measured.status]} on {other}: {measured.reason}"
            (doubtful if kept else excluded).setdefault(name, words)
        for name, words in self._mostly_wrong(problem).items():
            if name not in newest:
                (doubtful if name == default else excluded).setdefault(name, words)
        return excluded, {name: words for name, words in doubtful.items() if name not in excluded}

    @cached_property
    def good(self) -> Good:
        """Problems at which implementations as they are now are good; for what ran out of memory."""
        return Good((name, problem) for problem in self.problems.values() for name in self._good_at(problem))

    def _good_at(self, problem: Problem) -> set[str]:
        return {
            name
            for group in self.measured_at(problem).values()
            for name, one in group.items()
            if (one.status, one.version) == (Status.OK, self.versions.get(name))
        }

    def failed_alike(self, problem: Problem) -> Iterable[Failure]:
        """Failures on problems of the same structure."""
        return self.failed.get(structure(problem), ())

    def _mostly_wrong(self, problem: Problem) -> dict[str, str]:
        """Implementations that were wrong at most problems of other sizes, each with that in words."""
        words = without_sizes(problem)
        wrong_at = self.wrong_alike(words)
        if not wrong_at:  # as mostly, and what is right need not be counted
            return {}
        right_at = self.right_alike(words)
        counts = {name: wrong + right_at[name] for name, wrong in wrong_at.items()}
        return {
            name: f"{WORDS[Status.INCORRECT]} on {wrong} of {counts[name]} problems of other sizes"
            for name, wrong in wrong_at.items()
            if wrong >= max(LEAST_WRONG, MOSTLY_WRONG * counts[name])
        }

    def wrong_alike(self, words: Words) -> Counter[str]:
        """Numbers of problems with these values beside their sizes at which implementations were wrong."""
        return self._wrong.get(words, Counter())

    def right_alike(self, words: Words) -> Counter[str]:
        """Numbers of problems with these values beside their sizes at which implementations were right."""
        if words not in self._right:
            found = map(self._good_at, self._by_words.get(words, ()))
            self._right[words] = Counter(chain.from_iterable(found))
        return self._right[words]

    @cached_property
    def _wrong(self) -> Mapping[Words, Counter[str]]:
        failures = chain.from_iterable(self.failed.values())
        wrong = {(one, name) for one, _, name, how in failures if how.status is Status.INCORRECT}
        found: dict[Words, Counter[str]] = defaultdict(Counter)
        for problem, name in wrong:
            found[without_sizes(problem)][name] += 1
        return found

    @cached_property
    def _right(self) -> dict[Words, Counter[str]]:
        return {}

    @cached_property
    def _by_words(self) -> Mapping[Words, list[Problem]]:
        found: dict[Words, list[Problem]] = defaultdict(list)
        for problem in self.problems.values():
            found[without_sizes(problem)].append(problem)
        return found

    def _newest(self, problem: Problem, here: Device) -> dict[str, Measured]:
        """The record of each implementation that says whether it works at the problem."""
        newest: dict[str, tuple[bool, datetime, Measured]] = {}
        for key, group in self.measured_at(problem).items():
            setting = self.settings[key]
            for name, measured in group.items():
                if measured.version != self.versions.get(name) or not _counts(setting, measured, here):
                    continue
                found = _same_host(setting, here), measured.measured_at, measured
                if name not in newest or newest[name][:2] < found[:2]:
                    newest[name] = found
        return {name: measured for name, (_, _, measured) in newest.items()}


def says_wrong(reason: str) -> bool:
    """Whether a reason of `failures` is that results were wrong."""
    return reason.startswith(WORDS[Status.INCORRECT])


def _same_host(setting: Setting, here: Device) -> bool:
    """A device that is not of this machine has no host: then every host counts."""
    return setting.device.fingerprint == here.fingerprint or not here.host


def _counts(setting: Setting, measured: Measured, here: Device) -> bool:
    return _same_host(setting, here) or measured.status is Status.INCORRECT


def _concerns(problem: Problem, other: Problem, measured: Measured) -> bool:
    """Whether a failure on one problem is to be expected on another one of the same structure."""
    wants_memory = measured.status is Status.OUT_OF_MEMORY
    return is_no_smaller(problem, other) if wants_memory else distance(problem, other) <= MAX_DISTANCE


def _scaled(estimate: Estimate, ratio: tuple[float, float], apart: float) -> Estimate:
    """The estimate of a neighbour at (log2) distance `apart`, its time and bytes multiplied by `ratio`.

    The interval is widened by half the distance, as a factor of two per doubling would be by all of it.
    """
    time, memory = ratio
    widening = 2 ** (apart / 2)
    return estimate.timed(time, widening, widening - 1).sized(memory, widening, widening - 1)
