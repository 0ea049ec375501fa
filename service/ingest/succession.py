"""Notice of a database that has become another one under a running service: restored, or replaced."""

from __future__ import annotations

from typing import Any

from ..logs import LOGGER

HINT = "`selector audit --action database.restore` says what that has undone"


class Succession:
    """Comparison of a database's journal with what it was at the look before: entries are only ever added."""

    def __init__(self) -> None:
        self._last: dict[str, Any] | None = None  # entry at the look before
        self._looked = False

    def look(self, connection: Any, location: str) -> None:
        """Warn once where the database was restored since the look before, or lacks entries that it had."""
        from kernel_selector.db import audit

        last = self._last
        goes_on = last is None or audit.entry(connection, last["id"]) == last
        restored = self._restored(connection, goes_on) if self._looked else None
        if restored is not None:
            who, subject = restored["author"], restored["subject"]
            LOGGER.warning("The database %s was restored from %a by %a: %s.", location, subject, who, HINT)
        elif not goes_on:
            LOGGER.warning(
                "The database %s has become another one: its journal lacks entries that it had. It was put "
                "back or replaced without `selector database restore`, and nobody has noted what that undid.",
                location,
            )
        self._last = _newest(connection)
        self._looked = True

    def _restored(self, connection: Any, goes_on: bool) -> dict[str, Any] | None:
        """The last restoration that the journal has since the look before."""
        from kernel_selector.db import audit

        found = _newest(connection, action=audit.Action.RESTORE)
        if found is None or self._last is None:
            return found
        after = (
            found["id"] > self._last["id"] if goes_on else found["happened_at"] > self._last["happened_at"]
        )
        return found if after else None


def _newest(connection: Any, **kind: Any) -> dict[str, Any] | None:
    """The last entry of the journal, of a kind; None where there is none."""
    from kernel_selector.db import audit

    # read to its end, which closes its cursor
    found = list(audit.page(connection, limit=1, latest=True, **kind))
    return found[0] if found else None
