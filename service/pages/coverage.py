"""Coverage and freshness of measurements by operator and kind of device, in the database and as shipped."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Status
from selector.selection.catalogue import imported, is_present
from selector.selection.records import FAILURES

from ..cached import Cached

if TYPE_CHECKING:
    from selector.selection.selector import Selector


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """Measured implementations and problems of an operator on a kind of device.

    A record is current when it is of an implementation's present version; older ones are second-best
    evidence. `measured` of `implementations` have a good current record; for an operator that is not
    known here, both are 0. `shipped` ones come with this package.
    """

    operator: str
    device: str  # its name
    device_key: str
    problems: int
    records: int
    current: int  # good ones of present versions
    failed: int  # of those of present versions: wrong, out of memory, timed out, crashed
    measured: int
    implementations: int
    last_measured_at: datetime
    shipped: bool = False

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self) | {"last_measured_at": self.last_measured_at.isoformat()}


def coverage(connection: Any) -> list[Coverage]:
    """Every operator on every kind of device that was measured. Counts their problems: about a second for a
    million measurements. Raises the errors of the database."""
    from kernel_selector.db.counters import problems, versions

    by_pair: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in versions(connection):
        by_pair[row["operator"], row["device_key"]].append(row)
    counts = problems(connection)
    return [_coverage(rows, counts[pair]) for pair, rows in sorted(by_pair.items())]


class CoverageCache:
    """The coverage of a selector's database, counted again when it changed, at most a tenth of the time.

    What ships with the package stands behind it, counted once. Safe to share among threads.
    """

    def __init__(self, selector: Selector) -> None:
        self._selector = selector
        self._cached = Cached(self._counted, patience_s=lambda: selector.patience_s)

    def rows(self) -> list[Coverage]:
        """Coverage as of now or a moment ago. Raises the errors of the database when it was never counted."""
        return self._cached.value(self._selector.status()["snapshot"])

    def _counted(self) -> list[Coverage]:
        with self._selector.database.read() as connection:
            own = coverage(connection)
        return [*own, *self._shipped]

    @cached_property
    def _shipped(self) -> list[Coverage]:
        database = self._selector.shipped_database
        if database is None:
            return []
        with database.read() as connection:
            return [replace(row, shipped=True) for row in coverage(connection)]


def _coverage(rows: Iterable[dict[str, Any]], problems: int) -> Coverage:
    found = list(rows)
    operator = found[0]["operator"]
    present = [row for row in found if is_present(operator, row["implementation"], row["version"])]
    good = [row for row in present if row["status"] == Status.OK]
    newest = max(found, key=lambda row: row["last_measured_at"])
    return Coverage(
        operator=operator,
        device=newest["device"],
        device_key=newest["device_key"],
        problems=problems,
        records=sum(row["records"] for row in found),
        current=sum(row["records"] for row in good),
        failed=sum(row["records"] for row in present if row["status"] in FAILURES),
        measured=len({row["implementation"] for row in good}),
        implementations=0 if imported(operator) else len(registry.implementations(operator)),
        last_measured_at=newest["last_measured_at"],
    )
