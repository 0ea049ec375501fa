"""Freshness of the database's measurements by operator and device, and what to measure again.

A pair of a problem and an implementation is current when it was measured by the implementation's sources as
they are, with the device's software as it is. What was measured before is second-best evidence.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device, Environment, Problem, UnknownOperator
from kernel_selector.kernels.versions import holds

from ..selection.devices import resolve
from .events import Event
from .profile import opened, session
from .run import Run

if TYPE_CHECKING:
    from kernel_selector.db import Database
    from kernel_selector.db.freshness_rows import FreshnessRow
    from kernel_selector.kernels.measure.jobs import Job

Pair = tuple[str, str]  # a problem's key and an implementation


@dataclass(frozen=True, kw_only=True)
class Freshness:
    """Freshness of an operator's measurements on a kind of device.

    Of `pairs` that were ever measured `current` hold; of the others `older_sources` were measured by
    earlier sources only, and `older_software` by the present ones under other software. `unmeasured` names
    the implementations without any. `changes` says what differs, in words.
    """

    operator: str
    device: str
    device_key: str
    here: bool  # whether the device is in this machine: then its software is this process's
    problems: int
    pairs: int
    current: int
    older_sources: int
    older_software: int
    failed: int  # of the current ones: wrong, out of memory, timed out, crashed
    unmeasured: tuple[str, ...]
    changes: tuple[str, ...]
    last_measured_at: datetime

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready dictionary."""
        return asdict(self) | {"last_measured_at": self.last_measured_at.isoformat()}


def freshness(
    database: Database | str | Path | None = None, *, here: Mapping[str, Environment] | None = None
) -> list[Freshness]:
    """Freshness of every operator on every measured kind of device, by name.

    here: the software of this machine's devices by their fingerprint; None: looked up. Elsewhere the
    newest software is the device's. Reads every measurement. Raises the errors of the database.
    """
    from kernel_selector.db import freshness_rows

    present = local_software() if here is None else here
    with opened(database) as store, store.read() as connection:
        software = freshness_rows.environments(connection)
        groups: dict[tuple[str, str], list[FreshnessRow]] = defaultdict(list)
        for one in freshness_rows.freshness_rows(connection):
            groups[one.operator, one.device_key].append(one)
    return [_freshness(found, software, present) for _, found in sorted(groups.items())]


def refresh_jobs(
    database: Database | str | Path | None, device: Device, environment: Environment
) -> list[Job]:
    """Stale measurements of a device of this machine as jobs, close races first.

    A problem is contested where the two fastest are close: there the winner may change. Raises the errors of
    the database.
    """
    from kernel_selector.db import freshness_rows

    with opened(database) as store, store.read() as connection:
        mine = [
            one
            for one in freshness_rows.freshness_rows(connection)
            if one.device_fingerprint == device.fingerprint
        ]
        return _jobs(connection, mine, {device.fingerprint: environment})


def refresh_plan(database: Database | str | Path | None, device: str | None = None) -> list[Job]:
    """Stale measurements of a kind of device as jobs for a machine that has one, close races first.

    Problems come with all implementations that were measured of them: the times of another machine compare
    with each other alone. The most contested first. Raises UnknownDevice and the errors of the database.
    """
    from kernel_selector.db import freshness_rows, records

    with opened(database) as store, store.read() as connection:
        key = resolve(device, records.devices(connection)).device.key
        mine = [one for one in freshness_rows.freshness_rows(connection) if one.device_key == key]
        return _jobs(connection, mine, {}, whole=True)


def _jobs(
    connection: Any, found: Sequence[FreshnessRow], here: Mapping[str, Environment], *, whole: bool = False
) -> list[Job]:
    """Jobs of the stale measurements, close races first; `whole`: with all other implementations measured
    on the same problems.
    """
    from kernel_selector.db import freshness_rows
    from kernel_selector.kernels.measure.jobs import Job

    software = freshness_rows.environments(connection)
    times: dict[str, dict[str, float]] = defaultdict(dict)
    groups: dict[str, list[FreshnessRow]] = defaultdict(list)
    for one in found:
        if one.time_ms is not None:
            times[one.problem_key][one.implementation] = one.time_ms
        if one.implementation in _versions(one.operator):
            groups[one.operator].append(one)
    known: dict[str, set[str]] = defaultdict(set)
    stale: dict[str, set[str]] = defaultdict(set)
    for group in groups.values():
        expected = _Expected(group, software, here)
        current = {_pair(one) for one in group if expected.holds(one)}
        for one in group:
            known[one.problem_key].add(one.implementation)
            if _pair(one) not in current:
                stale[one.problem_key].add(one.implementation)
    wanted = known if whole else stale
    problems = _problems(connection, stale.keys())
    ordered = sorted(problems, key=lambda key: (runner_up_ratio(times[key].values()), key))
    return [Job(problems[key], tuple(sorted(wanted[key]))) for key in ordered]


def refresh(
    *,
    device: str | None = None,
    database: Database | str | Path | None = None,
    policy: str = "quick",
    budget_s: float | None = None,
) -> Iterator[Event]:
    """Events of measuring stale candidates again on a torch device, close races first.

    Raises as `selector.profile`.
    """
    with opened(database) as store, session(device, policy) as measuring:
        jobs = refresh_jobs(store, measuring.device, measuring.environment)
        yield from Run(store, measuring, budget_s).events(jobs)


def runner_up_ratio(times_ms: Iterable[float]) -> float:
    """Second smallest time over the smallest; infinite for fewer than two."""
    best = sorted(times_ms)[:2]
    return best[1] / best[0] if len(best) == 2 else math.inf


def local_software() -> dict[str, Environment]:
    """Software versions of this machine's devices by fingerprint, without measurements."""
    from kernel_selector.kernels import measure

    from ..selection.devices import local_names

    return {measure.identify(name).fingerprint: measure.current_environment(name) for name in local_names()}


class _Expected:
    """Reference for freshness: current sources, and the software of the local device or else the newest."""

    def __init__(
        self,
        found: Sequence[FreshnessRow],
        software: Mapping[int, Environment],
        here: Mapping[str, Environment],
    ) -> None:
        newest = max(found, key=lambda one: (one.device_fingerprint in here, one.measured_at))
        self.here = newest.device_fingerprint in here
        self.software = here[newest.device_fingerprint] if self.here else software[newest.environment_id]
        self._fingerprint, self._known = newest.device_fingerprint, software

    def software_of(self, one: FreshnessRow) -> Environment:
        """Software versions of a measurement, without the thread count of another host."""
        own = self._known[one.environment_id]
        same = one.device_fingerprint == self._fingerprint
        return own if same else replace(own, threads=self.software.threads)

    def holds(self, one: FreshnessRow) -> bool:
        """Whether a measurement is of the current sources and of this software."""
        return _is_present(one) and self.software_of(one).fingerprint == self.software.fingerprint


def _freshness(
    found: Sequence[FreshnessRow], software: Mapping[int, Environment], here: Mapping[str, Environment]
) -> Freshness:
    expected = _Expected(found, software, here)
    current = [one for one in found if expected.holds(one)]
    present = [one for one in found if _is_present(one)]
    pairs, of_sources, holds = ({_pair(one) for one in some} for some in (found, present, current))
    first = found[0]
    return Freshness(
        operator=first.operator,
        device=first.device_name,
        device_key=first.device_key,
        here=expected.here,
        problems=len({one.problem_key for one in found}),
        pairs=len(pairs),
        current=len(holds),
        older_sources=len(pairs - of_sources),
        older_software=len(of_sources - holds),
        failed=len({_pair(one) for one in current if one.status not in ("ok", "unsupported")}),
        unmeasured=tuple(sorted(_versions(first.operator).keys() - {one.implementation for one in found})),
        changes=_changes([one for one in found if _pair(one) not in holds], expected),
        last_measured_at=max(one.measured_at for one in found),
    )


def _changes(stale: Sequence[FreshnessRow], expected: _Expected) -> tuple[str, ...]:
    """Causes of staleness, the most frequent first: changed sources and software versions."""
    edited = Counter(f"{one.implementation} was changed" for one in stale if not _is_present(one))
    differing = Counter(
        words for one in stale for words in expected.software.differences(expected.software_of(one))
    )
    return tuple(words for words, _ in (*differing.most_common(), *edited.most_common()))


def _pair(one: FreshnessRow) -> Pair:
    return one.problem_key, one.implementation


def _is_present(one: FreshnessRow) -> bool:
    now = _versions(one.operator).get(one.implementation)
    return holds(one.operator, one.implementation, one.version, now)


@cache
def _versions(operator: str) -> dict[str, str]:
    """Current versions of an operator's implementations; none for an unknown operator."""
    try:
        return {name: item.version for name, item in registry.implementations(operator).items()}
    except UnknownOperator:
        return {}


def _problems(connection: Any, keys: Collection[str]) -> dict[str, Problem]:
    """Problems that current operators accept, by key."""
    from kernel_selector.db import freshness_rows

    return {
        problem.key: problem
        for problem in freshness_rows.problems(connection)
        if problem.key in keys and registry.is_valid(problem)
    }
