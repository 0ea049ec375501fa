"""Measurements that wait for somebody to agree: what one token sends must not be able to flip a choice.

What the owner of a database measured counts, and as if it were his what ships with this package, where
questions are answered from that. What a trusted token sent counts, unless it would flip the choice that the
measurements of others give to one that is better or worse by more than FACTOR: in time, in memory, or in what
plans of training steps go by, which are a forward pass, graphs, and bytes kept for backward. That waits for a
second run that agrees. So do graphs and bytes that are by FACTOR not what others measured of the same, and a
time so noisy that the default is chosen where that costs more than FACTOR. So does all that is of another
regime than launched, since it corrects what is known of other problems (`regimes.carried`).
What another token sent waits until a second author agrees, and does not stand beside what the owner or
trusted tokens measured of the same, or what ships. Two runs agree where their times, with their noise, and
their bytes are within FACTOR, or where both failed in the same way.

This is asked when measurements are read, so that trust that is given or taken changes at once what counts.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Record, Status
from kernel_selector.kernels.contract.record import LAUNCHED

from ..cost_model.estimate import noise_of
from . import shipped as shipping

if TYPE_CHECKING:
    from kernel_selector.db.contested import Claim

FACTOR = 1.5  # machines of one kind differ by less (`evidence.OTHER_MACHINE`), but for hosts that are busy
STEADY = ("graph_ms", "graph_forward_ms", "kept_bytes")  # no host disturbs them
FIGURES = ("time_ms", "peak_bytes", "forward_ms", *STEADY)
Slot = tuple[str, str]  # an implementation and the version that it stands for


def unconfirmed(
    connection: Any,
    *,
    operator: str,
    device_key: str | None = None,
    problem_keys: Sequence[str] | None = None,
    shipped: bool | None = None,
) -> dict[int, str]:
    """Ids of an operator's measurements that do not count yet, each with the key of its problem.

    Of all devices and problems, or of one device and of some problems, `bulk.LOOKUP` at most. `shipped`:
    whether they are held against what ships, None for as SELECTOR_SHIPPED says. Reads none of a database that
    nobody sent anything to.
    """
    found = waiting(
        connection, operator=operator, device_key=device_key, problem_keys=problem_keys, shipped=shipped
    )
    return {claim.id: claim.problem_key for claim in found}


def waiting_among(connection: Any, records: Iterable[Record], *, shipped: bool | None = None) -> set[int]:
    """Ids of measurements that do not count yet, of the problems and kinds of devices of some records.

    `shipped` as of `unconfirmed`.
    """
    problems = ((one.problem.operator, one.problem.key, one.device.key) for one in records)
    return waiting_at(connection, problems, shipped=shipped)


def waiting_at(
    connection: Any, problems: Iterable[tuple[str, str, str]], *, shipped: bool | None = None
) -> set[int]:
    """Ids of measurements that do not count yet, of some problems, each an operator, its key and a device's.

    `shipped` as of `unconfirmed`.
    """
    from kernel_selector.db.bulk import parts

    wanted: dict[tuple[str, str], set[str]] = defaultdict(set)
    for operator, problem, device in problems:
        wanted[operator, device].add(problem)
    return {
        claim.id
        for (operator, device), keys in wanted.items()
        for part in parts(sorted(keys))
        for claim in waiting(
            connection, operator=operator, device_key=device, problem_keys=part, shipped=shipped
        )
    }


def waiting(
    connection: Any,
    *,
    operator: str,
    device_key: str | None = None,
    problem_keys: Sequence[str] | None = None,
    shipped: bool | None = None,
) -> Iterator[Claim]:
    """An operator's measurements that do not count yet, by problem and kind of device; of all, or as
    `contested.claims`.
    """
    from kernel_selector.db import contested

    if not contested.was_sent_to(connection):
        return
    there = shipped_problems(operator, shipped)
    if problem_keys is not None:
        there &= set(problem_keys)
    found = _by_problem(
        contested.claims(
            connection, operator=operator, device_key=device_key, problem_keys=problem_keys, beside=there
        )
    )
    ships = _by_problem(_shipped_claims(operator, there & {key for key, *_ in found}))
    for slot, claims in found.items():
        yield from _waiting(operator, [*ships.get(slot, ()), *claims])


def _by_problem(claims: Iterable[Claim]) -> dict[tuple[str, str, str], list[Claim]]:
    """Claims by the problem's key, the device's, and the regime."""
    found: dict[tuple[str, str, str], list[Claim]] = defaultdict(list)
    for claim in claims:
        found[claim.problem_key, claim.device_key, claim.regime].append(claim)
    return found


def shipped_problems(operator: str, shipped: bool | None) -> frozenset[str]:
    """Keys of the problems of which measurements ship; none where these are left out, or cannot be used.

    That they cannot be used is a caveat of each choice.
    """
    from kernel_selector.db import DatabaseError

    try:
        return shipping.problem_keys(operator) if shipping.are_wanted(shipped) else frozenset()
    except (DatabaseError, OSError):
        return frozenset()


def _shipped_claims(operator: str, keys: frozenset[str]) -> list[Claim]:
    """What ships about some problems: the owner's word."""
    from kernel_selector.db import contested

    if not keys:
        return []
    with shipping.opened().read() as connection:
        return list(contested.stated(connection, operator=operator, problem_keys=keys))


def _waiting(operator: str, claims: Sequence[Claim]) -> Iterator[Claim]:
    """Those of the claims about one problem on one kind of device that do not count yet."""
    slots: dict[Slot, list[Claim]] = defaultdict(list)
    for claim in claims:
        slots[_slot(operator, claim)].append(claim)
    counted: list[Claim] = []
    for claim in (one for one in claims if one.trusted):
        runs = slots[_slot(operator, claim)]
        agreed = any(one.id != claim.id and _agree(one, claim) for one in runs)
        of_others = [one for one in counted if one.author != claim.author]
        same = [one for one in of_others if _slot(operator, one) == _slot(operator, claim)]
        moves = _flips(claim, counted) or _blurs(operator, claim, counted) or _contradicts(claim, same)
        if claim.author is None or agreed or not (moves or claim.regime != LAUNCHED):
            counted.append(claim)
        else:
            yield claim
    settled = {_slot(operator, claim) for claim in counted}
    for claim in (one for one in claims if not one.trusted):
        runs = slots[slot := _slot(operator, claim)]
        agreed = any(one.author != claim.author and _agree(one, claim) for one in runs)
        if slot in settled or not agreed:
            yield claim


def _slot(operator: str, claim: Claim) -> Slot:
    name = claim.implementation
    return name, registry.standing_version(operator, name, claim.version)


def _agree(one: Claim, other: Claim) -> bool:
    if one.status != other.status or one.status != Status.OK:
        return one.status == other.status
    pairs = [(getattr(one, name), getattr(other, name)) for name in FIGURES]
    pairs.append((1 + _noise(one), 1 + _noise(other)))
    return all(_alike(mine, theirs) for mine, theirs in pairs)


def _alike(mine: float | None, theirs: float | None) -> bool:
    """Whether two figures are within FACTOR, or one is not there."""
    if mine is None or theirs is None:
        return True
    return max(mine, theirs) <= FACTOR * max(min(mine, theirs), 1e-9)


def _noise(claim: Claim) -> float:
    return 0.0 if claim.percentiles is None else noise_of(*claim.percentiles)


def _flips(claim: Claim, counted: Sequence[Claim]) -> bool:
    """Whether a claim, with those that count, makes another choice the best by more than FACTOR.

    What the best is without it, the others say. By their words the new choice may cost so much more than
    that, and by its own so much less, in time and in memory.
    """
    for figure in FIGURES:
        known = _latest((one for one in counted if one.author != claim.author), figure)
        if not known:
            continue
        after = {**_latest(counted, figure), **_latest([claim], figure, failed=True)}
        before, now = (min(values, key=lambda one: (values[one], one)) for values in (known, after))
        said = known[before] / after[now] if now == claim.implementation else 1.0
        if now != before and max(said, known.get(now, 0.0) / known[before]) > FACTOR:
            return True
    return False


def _contradicts(claim: Claim, same: Sequence[Claim]) -> bool:
    """Whether a claim has other figures of a step than others have of the same, by more than FACTOR.

    Plans go by the figures, whichever is the best; what machines of one kind measure of these is alike.
    """
    pairs = ((getattr(claim, name), getattr(one, name)) for one in same[-1:] for name in STEADY)
    return any(not _alike(mine, theirs) for mine, theirs in pairs)


def _blurs(operator: str, claim: Claim, counted: Sequence[Claim]) -> bool:
    """Whether a claim is so noisy that by it the default is chosen where it costs more than FACTOR.

    By the words of others. A switch away from the default must gain more than the noise of both times.
    """
    known = _latest((one for one in counted if one.author != claim.author), "time_ms")
    found = registry.operators().get(operator)
    if claim.status != Status.OK or found is None or found.default not in known:
        return False
    default = found.default
    after = {**_latest(counted, "time_ms"), **_latest([claim], "time_ms")}
    noise = {claim.implementation: _noise(claim)}
    if known[default] <= FACTOR * min(known.values()):
        return False
    return _switched(after, default, {}) and not _switched(after, default, noise)


def _switched(times: Mapping[str, float], default: str, noise: Mapping[str, float]) -> bool:
    """Whether another implementation than the default is chosen by times that are so noisy."""
    of_default = noise.get(default, 0.0)
    return any(
        times[default] / time - 1 > max(noise.get(name, 0.0), of_default) for name, time in times.items()
    )


def _latest(claims: Iterable[Claim], figure: str, *, failed: bool = False) -> dict[str, float]:
    """Figure of each implementation by its latest claim; `failed` ones are infinite, or else left out."""
    found: dict[str, float] = {}
    for one in claims:
        value = getattr(one, figure)
        if one.status == Status.OK and value is not None:
            found[one.implementation] = max(float(value), 1e-9)
        elif failed and one.status != Status.OK:  # a good one without the figure says nothing of it
            found[one.implementation] = math.inf
    return found
