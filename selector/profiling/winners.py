"""Fastest implementations by problem, from current measurements on this machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from math import inf
from typing import TYPE_CHECKING

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Problem, Record
from kernel_selector.kernels.versions import holds

if TYPE_CHECKING:
    from kernel_selector.db import Database
    from kernel_selector.kernels.measure import Session


def winners(store: Database, measuring: Session, problems: Collection[Problem]) -> dict[str, dict[str, int]]:
    """Number of problems on which each implementation is the fastest, by operator, the most frequent
    first.

    Only records of this device, environment, policy and regime count, and of the sources as they are.
    """
    from kernel_selector.db import records

    found: dict[str, dict[str, int]] = {}
    for operator in dict.fromkeys(problem.operator for problem in problems):
        with store.read() as connection:
            every = records.find(
                connection,
                operator=operator,
                device_key=measuring.device.key,
                statuses=["ok"],
                regime=measuring.policy.regime,
            )
            best = fastest(
                record for record in every if record.problem in problems and is_current(record, measuring)
            )
        found[operator] = dict(Counter(record.implementation for record in best.values()).most_common())
    return found


def fastest(found: Iterable[Record]) -> dict[Problem, Record]:
    """Fastest record of each problem; repeated measurements count with the latest."""
    times: dict[Problem, dict[str, Record]] = {}
    for record in found:
        times.setdefault(record.problem, {})[record.implementation] = record
    return {
        problem: min(each.values(), key=lambda record: record.total.undisturbed_ms if record.total else inf)
        for problem, each in times.items()
    }


def is_current(record: Record, measuring: Session) -> bool:
    """Whether a record of the session's regime is of its device, environment and policy, and of the current
    sources.
    """
    known = registry.implementations(record.problem.operator).get(record.implementation)
    return (
        known is not None
        and holds(known.operator, known.name, record.implementation_version, known.version)
        and record.device.fingerprint == measuring.device.fingerprint
        and record.environment.fingerprint == measuring.environment.fingerprint
        and record.policy == measuring.policy.name
    )
