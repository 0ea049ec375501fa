"""Two bodies of evidence as one: a user's own measurements, and those that come with this package."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property

from kernel_selector.kernels.contract import Device, Environment, Problem, Status

from ..cost_model.domain import UNSEEN_WIDTH
from ..cost_model.estimate import Tier
from .evidence import Evidence, Failure, Groups
from .neighbours import Words


class JointEvidence(Evidence):
    """The records of one operator on one kind of device in two bodies of evidence, looked up in both.

    Of what was measured under equally good circumstances a user's own goes first, and a candidate that it
    lacks has the figures that ship. Neither body is copied: the one that ships is shared.
    """

    def __init__(self, own: Evidence, shipped: Evidence) -> None:
        self._own, self._ships = own, shipped
        self.shipped = False
        self.versions = own.versions
        self.settings = {**shipped.settings, **own.settings}
        self.problems = {**shipped.problems, **own.problems}
        self.left_out = own.left_out
        self.waiting = own.waiting

    @property
    def ships(self) -> Evidence:
        """The part that came with this package."""
        return self._ships

    @cached_property
    def groups(self) -> Mapping[str, Groups]:  # type: ignore[override]
        """Measurements by the problem's key and their circumstances; made when first asked for."""
        keys = {*self._ships.groups, *self._own.groups}
        return {key: _joined(self._own.groups.get(key), self._ships.groups.get(key)) for key in keys}

    def measured_at(self, problem: Problem) -> Groups:
        """Measurements of a problem, by their circumstances."""
        return _joined(self._own.measured_at(problem), self._ships.measured_at(problem))

    def least_noise(self, here: Device, *, shipped: bool = False) -> float:
        """Least difference that a cost model of one of the two bodies can tell `here`."""
        return (self._ships if shipped else self._own).least_noise(here, shipped=shipped)

    def near(self, problem: Problem, here: Device, software: Environment | None) -> Tier | None:
        """The tier of the nearest problem of one's own, else of those that ship.

        Where one's own are in a dtype of another width alone, the nearest of all.
        """
        own = self._own.near(problem, here, software)
        if own is not None and own.doublings < UNSEEN_WIDTH:
            return own
        ships = self._ships.near(problem, here, software)
        found = [tier for tier in (own, ships) if tier is not None]
        return min(found, key=lambda tier: tier.doublings, default=None)

    def failed_alike(self, problem: Problem) -> Iterable[Failure]:
        """Failures on problems of the same structure that no later measurement of one's own refutes."""
        yield from self._own.failed_alike(problem)
        for failure in self._ships.failed_alike(problem):
            if not self._refuted(failure):
                yield failure

    def wrong_alike(self, words: Words) -> Counter[str]:
        """Numbers of problems at which implementations were wrong, in both bodies together."""
        return self._own.wrong_alike(words) + self._ships.wrong_alike(words)

    def right_alike(self, words: Words) -> Counter[str]:
        """Numbers of problems at which implementations were right, in both bodies together."""
        return self._own.right_alike(words) + self._ships.right_alike(words)

    def _refuted(self, failure: Failure) -> bool:
        """Whether what failed for those who ship it was measured again here, and worked."""
        problem, _, name, failed = failure
        again = (group.get(name) for group in self._own.groups.get(problem.key, {}).values())
        return any(
            one is not None
            and one.status is Status.OK
            and one.version == self.versions.get(name)
            and one.measured_at >= failed.measured_at
            and one.outweighs(failed)
            for one in again
        )


def _joined(own: Groups | None, shipped: Groups | None) -> Groups:
    """Both; of the same circumstances the newer record of each implementation."""
    if not own or not shipped:
        return own or shipped or {}
    found = {**shipped, **own}
    for key in own.keys() & shipped.keys():
        mine, theirs = own[key], shipped[key]
        newer = {
            name: one
            for name, one in theirs.items()
            if name not in mine or mine[name].measured_at < one.measured_at
        }
        found[key] = {**mine, **newer}
    return found
