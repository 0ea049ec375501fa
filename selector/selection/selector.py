"""`Selector`: questions answered from a database and what ships, quickly and, when frozen, always alike."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from threading import Event, Lock, RLock, Thread
from typing import TYPE_CHECKING, Any, TypeVar

from kernel_selector.kernels.contract import Device, Problem, SelectorError
from kernel_selector.kernels.contract.record import LAUNCHED

from . import catalogue
from .answer import Known, known_each
from .answer_cache import Answer, Answers
from .choice import Choice
from .database import named_database, require_database
from .knowledge import UNUSABLE, Knowledge
from .query import DEFAULT_OPERATOR, Query, parse
from .query_log import ASKER, noting
from .shipped import are_wanted
from .snapshot import Body, Changed, Pair, state_of

if TYPE_CHECKING:
    from kernel_selector.db import Database

    from .evidence import Evidence

CHECK_S = 1.0  # how often to look whether the database has changed
BACK_OFF = 9  # times as long as a look took, no other follows: a slow database costs a tenth of the time
LONGEST_REST_S = 10.0  # between two looks: what changed after one that read everything is seen by then
LOCK_WAIT_S = 2.0  # readers hardly ever wait; those that do have callers who wait with them
PATIENCE_S = 0.05  # that a question waits to hear from a server, which takes some milliseconds
LOADING_S = 0.25  # that a question in a service waits for what has changed to be read
SILENT_S = 0.25  # without a word, after which a server that was asked counts as one that does not answer
NONE_YET = "There are no measurements yet."
ABSENT = "SELECTOR_DATABASE_URL names a database that is not there: only what ships answers."
STALE = "The database cannot be read now, so this rests on what was loaded before."
SNAPSHOT_TRIES = 3

Found = TypeVar("Found")


class Selector:
    """Chooses implementations by the measurements and cost models of a database, and by those that ship.

    `database` is a file path, a SQLAlchemy URL, an open `Database`, or None for the default one: of
    SELECTOR_DATABASE_URL, else the user's own, which may be missing. Its measurements go before those that
    come with this package; `shipped=False`, or SELECTOR_SHIPPED=off where it is None, leaves the latter out.
    `frozen` keeps the first snapshot, so that all ranks of a distributed job agree; else changes are seen
    within a second, or a little later where reading them takes long. `background`, for services, reads them
    beside the questions: one waits a quarter of a second for it at most, and until then the answers rest on
    the state before. A database that cannot be read any more (deleted, damaged, locked) changes no answer:
    what was loaded goes on answering, each choice has a caveat that says so, and the database is looked for
    until it is back. Only what was never loaded, another device for example, raises its error then.
    Safe to share among threads. Raises DatabaseMissing for a database that was named and is not there,
    InvalidRequest for what cannot be one, and the other errors of opening one.
    """

    def __init__(
        self,
        database: str | Path | Database | None = None,
        frozen: bool = False,
        *,
        shipped: bool | None = None,
        background: bool = False,
    ) -> None:
        require_database(database)
        self.with_shipped = are_wanted(shipped)
        self.frozen = frozen
        self._background, self._closed = background, False
        self._source = database
        self._lock = RLock()
        self._looking = Lock()  # held by the one that looks for changes, or for who does so on its behalf
        self._answered_look = Event()  # that the database has been heard of in the look at hand
        self._look_began = math.inf
        self._open: Database | None = None
        self._stamp: object = None
        self._trouble: SelectorError | None = None  # why the database cannot be read now
        self._knowledge = Knowledge(Body(None), shipped=False)
        self._load()

    @property
    def snapshot(self) -> str:
        """Id of the measurements that choices are based on: equal ids, equal choices."""
        return self._knowledge.snapshot

    @property
    def database(self) -> Database:
        """The database, opened if need be. Raises the errors of opening it."""
        opened = self._open
        if opened is not None and (self._trouble is None or self.patience_s is not None):
            return opened  # without waiting for who looks, and reads much or hears nothing
        with self._lock:
            return self._opened()

    @property
    def patience_s(self) -> float | None:
        """Seconds that a question waits to hear from the server of the database; None for a file."""
        opened = self._open
        return PATIENCE_S if opened is not None and opened.stamp() is None else None

    def choose(
        self,
        operator: str | None = None,
        /,
        *,
        device: object = None,
        memory: str | int | None = None,
        objective: str = "time",
        override: str | None = None,
        among: Sequence[str] | None = None,
        regime: object = LAUNCHED,
        **hyperparameters: object,
    ) -> Choice:
        """The implementation to use for a problem; see `selector.choose`."""
        more: dict[str, Any] = {
            "memory": memory,
            "objective": objective,
            "override": override,
            "among": among,
            "regime": regime,
        }
        return self.answer(Query(hyperparameters=hyperparameters, operator=operator, device=device, **more))

    def choose_each(self, queries: Iterable[Query], *, kept: bool = True) -> list[Answer]:
        """The choice for each query, or the error that it met, in their order and from one snapshot.

        Those that were not asked before go through the cost model together. `kept=False` is for questions
        that nobody has: uncertain answers to them are not noted as the next to measure.
        """
        self._refresh()
        return self._answered(list(queries), kept=kept)

    def answer(self, query: Query) -> Choice:
        """The choice for a `Query`; raises as `choose`."""
        self._refresh()
        (found,) = self._answered([query])
        if isinstance(found, SelectorError):
            raise found
        return found

    def _answered(self, queries: list[Query], *, kept: bool = True) -> list[Answer]:
        """The answers to questions from one snapshot; from several where the database changes too fast."""
        several = len(queries) > 1
        try:
            found = self._from_one_snapshot(
                lambda: self._answers.each(queries, kept=kept), tries=SNAPSHOT_TRIES if several else None
            )
        except Changed:
            return [self._answer_or_error(query, kept=kept) for query in queries]
        return self._with_trouble(found)

    def _from_one_snapshot(self, ask: Callable[[], Found], *, tries: int | None = None) -> Found:
        """What `ask` finds, asked again after each change of the database that it meets.

        Raises Changed where each of so many tries meets one.
        """
        while True:
            try:
                return ask()
            except Changed as change:
                self._load(change.pair)
                if tries is not None and (tries := tries - 1) == 0:
                    raise

    def _answer_or_error(self, query: Query, *, kept: bool) -> Answer:
        try:
            (found,) = self._answered([query], kept=kept)
        except SelectorError as error:
            return error
        return found

    def _with_trouble(self, found: list[Answer]) -> list[Answer]:
        """Answers with the caveat that the database cannot be read, if so.

        Who asks by a service is not told where anything lies.
        """
        trouble, is_asked = self._trouble, bool(ASKER.get())
        if trouble is None and not (is_asked and self._knowledge.unusable):
            return found
        more = [STALE if is_asked else f"{STALE} {trouble}"] if trouble is not None else []

        def told(choice: Choice) -> Choice:
            unusable = f"{UNUSABLE.rstrip(': ')}."
            caveats = [unusable if is_asked and one.startswith(UNUSABLE) else one for one in choice.caveats]
            return replace(choice, caveats=(*caveats, *more))

        return [told(one) if isinstance(one, Choice) else one for one in found]

    def answers_at_once(self, query: Query) -> bool:
        """Whether an answer to a question is remembered, and no look at the database is due."""
        return not self._is_due() and self._answers.remembers(query)

    def operators(self) -> list[dict[str, Any]]:
        """JSON-ready descriptions of the operators, with their implementations; the imported ones last."""
        self._refresh()
        return catalogue.operators(self._knowledge.imported.values())

    def typed(self, operator: str | None, given: Mapping[str, str]) -> dict[str, Any]:
        """Hyperparameters from text, of an operator of ours or an imported one. Raises as `choose`."""
        from ..workloads.sampling import typed

        self._refresh()
        imported = self._knowledge.imported.get(operator or "")
        return imported.typed(given) if imported else typed(operator or DEFAULT_OPERATOR, given)

    def devices(self) -> list[dict[str, Any]]:
        """JSON-ready: known devices and measured ones, each with `measured` and its name in torch if here."""
        from kernel_selector.kernels.devices import known_devices

        from .devices import torch_name

        self._refresh()
        measured = [(device, True) for device in self._knowledge.devices]
        keys = {device.key for device, _ in measured}
        known = [(device, False) for key, device in known_devices().items() if key not in keys]
        return [
            {**device.to_dict(), "key": device.key, "measured": seen, "torch_device": torch_name(device)}
            for device, seen in (*measured, *known)
        ]

    def measured(self) -> set[Pair]:
        """Operators and keys of devices that there are measurements of, those that ship too.

        Raises the errors of reading the database.
        """
        self._refresh()
        known = self._knowledge
        return known.own.measured | (known.shipped.measured if known.shipped else set())

    def evidence(self, operator: str, device_key: str, regime: str = LAUNCHED) -> Evidence:
        """Measurements of an operator on a kind of device. Raises the errors of reading the database."""
        self._refresh()
        return self._from_one_snapshot(lambda: self._knowledge.evidence(operator, device_key, regime))

    def others(self, operator: str, device: Device) -> list[Device]:
        """The measured devices from which times may be carried over to a device, the best first.

        Raises the errors of reading the database.
        """
        self._refresh()
        return self._from_one_snapshot(lambda: self._knowledge.others(operator, device))

    def known_each(self, problems: Sequence[Problem], device: Device) -> list[Known | SelectorError]:
        """The figures that `choose` decides on, for each problem on a device, or the error that it met.

        Raises the errors of reading the database.
        """
        self._refresh()
        queries = [
            Query(hyperparameters=problem.as_dict, operator=problem.operator, device=device)
            for problem in problems
        ]

        def found() -> list[Known | SelectorError]:
            return known_each(self._knowledge, [parse(self._knowledge, query) for query in queries])

        return self._from_one_snapshot(found)

    @property
    def shipped_database(self) -> Database | None:
        """The measurements that come with this package; None where they are turned off or cannot be used."""
        shipped = self._knowledge.shipped
        return shipped.database if shipped else None

    @property
    def unusable(self) -> str:
        """Reason why the measurements that come with this package cannot be used, "" where they can."""
        return self._knowledge.unusable

    def device(self, asked: object = None) -> Device:
        """The device that a question about `asked` is about. Raises UnknownDevice and InvalidRequest."""
        self._refresh()
        return self._knowledge.resolved(asked).device

    def status(self) -> dict[str, Any]:
        """JSON-ready: the database, the snapshot of all measurements, how many, the models, and `trouble`.

        `trouble` is None, or why the database cannot be read now; `trouble_kind` the class of that error.
        `own_snapshot` is of the database alone; `shipped_records` come with this package, and `unusable` says
        why they do not. `refused` has the reasons why cost models are not used, by operator.
        """
        self._refresh()
        known = self._knowledge
        shipped = known.shipped
        return {
            "database": self._open.location if self._open else None,
            "snapshot": known.snapshot,
            "frozen": self.frozen,
            "own_snapshot": known.own.snapshot,
            "caveats": [*known.missing, *known.caveats],
            "records": known.own.records,
            "shipped_records": shipped.records if shipped else 0,
            "models": [{**model, "created_at": model["created_at"].isoformat()} for model in known.models],
            "trouble": self._trouble and str(self._trouble),
            "trouble_kind": self._trouble and type(self._trouble).__name__,
            "refused": known.refused,
            "unusable": known.unusable,
        }

    def reload(self) -> None:
        """Take a new snapshot now, also when frozen. Raises the errors of opening a database."""
        self._closed = False
        self._load()

    def close(self) -> None:
        """Close the database if this selector opened it; what is loaded goes on answering."""
        with self._lock:
            if self._open is not None and self._open is not self._source:
                self._open.close()
            self._open, self._closed = None, True

    def _load(self, *wanted: Pair) -> None:
        """Take the state of the database, opened if need be; what was loaded is loaded again.

        Answers given before are forgotten. An error leaves everything as it was.
        """
        from kernel_selector import db

        with self._lock:
            absent = ""
            try:
                opened = self._opened()
            except db.DatabaseMissing as error:
                if self._source is not None or self._open is not None:
                    raise
                # not an error before the first measurement; the message names the place
                own = Body.missing(f"{NONE_YET} {error}")
                absent = f"{ABSENT} {error}" if named_database() else ""
            else:
                self._answered_look.set()
                stamp, known = opened.stamp(), self._knowledge
                # what waits for others to agree is held against what ships, if that can be read
                earlier = None if known.unusable else known.own
                more: dict[str, Any] = {"wanted": wanted, "beside": self.with_shipped, "earlier": earlier}
                own = Body(opened, complete=self.frozen, **more)
                self._stamp = stamp
            self._knowledge = knowledge = Knowledge(own, shipped=self.with_shipped, absent=absent)
            self._trouble = None
            self._due = time.monotonic() + CHECK_S
            self._answers = Answers(knowledge, noting(self._open))

    def _opened(self) -> Database:
        """The database: open as it is, or opened anew after trouble, because it may be another one."""
        from kernel_selector import db

        if isinstance(self._source, db.Database):
            self._open = self._source
        elif self._open is None or self._trouble:
            before = self._open
            self._open = db.Database.open(self._source, busy_timeout_s=LOCK_WAIT_S)
            if before is not None:
                before.close()
        return self._open

    def _refresh(self) -> None:
        """Look whether the database has changed, when it is time, and load what has.

        One question looks, and the others do not wait for it. Nor does that one wait long, where a server may
        be silent or the questions are others': what is not there by then is for later ones.
        """
        if not self._is_due() or not self._looking.acquire(blocking=False):
            self._notice_silence()
            return
        # in this order, for who reads both beside it
        self._look_began, self._answered_look = time.monotonic(), Event()
        patience_s = self.patience_s
        if patience_s is None and not (self._background and self._is_written_to()):
            self._look()
            return
        look = Thread(target=self._look, name="database", daemon=True)
        try:
            look.start()
        except RuntimeError:  # no more threads
            self._look()
            return
        if patience_s is None or (self._trouble is None and self._answered_look.wait(patience_s)):
            look.join(LOADING_S if self._background else None)

    def _is_written_to(self) -> bool:
        """Whether a file has changed since the last look, as some microseconds tell, or cannot be read."""
        opened = self._open
        return opened is None or self._trouble is not None or opened.stamp() != self._stamp

    def _notice_silence(self) -> None:
        """Take it for trouble that a look at a server goes on and nothing has been heard of it."""
        unheard = not self._answered_look.is_set() and self._looking.locked() and self.patience_s is not None
        if unheard and self._trouble is None and time.monotonic() - self._look_began > SILENT_S:
            from kernel_selector.db import DatabaseUnreachable

            place = self._open.location if self._open else ""
            self._trouble = DatabaseUnreachable(f"The database {place} does not answer: see its server.")

    def _look(self) -> None:
        """Look once, in the place of who holds `_looking`; the event is set when the database answers."""
        try:
            with self._lock:
                if self._closed:
                    return
                if self._trouble or self._changed():
                    self._load()
                else:
                    self._trouble = None  # that it took long to say so is none
        except SelectorError as error:
            self._trouble = error.with_traceback(None)  # which would keep what it met alive
        except Exception as error:  # of a row that is damaged, for example
            from kernel_selector.db import DatabaseError

            place = self._open.location if self._open else ""
            kind = type(error).__name__
            self._trouble = DatabaseError(f"The database {place} cannot be read: {kind}: {error}.")
        finally:
            ended = time.monotonic()
            unasked = (
                self._trouble is not None and self.patience_s is not None
            )  # nobody waits for that server
            rest_s = 0.0 if unasked else min(BACK_OFF * (ended - self._look_began), LONGEST_REST_S)
            self._due = ended + max(CHECK_S, rest_s)
            self._answered_look.set()
            self._looking.release()

    def _is_due(self) -> bool:
        if self.frozen or self._closed:
            return False
        return time.monotonic() >= self._due and not self._looking.locked()

    def _changed(self) -> bool:
        if self._open is None:
            return self._is_there_now()
        stamp = self._open.stamp()
        if stamp is not None and stamp == self._stamp:
            return False
        # a stamp also changes when somebody opens or closes the file
        with self._open.read() as connection:
            self._open.check_revision(connection)
            changed = state_of(connection) != self._knowledge.own.state
        if not changed:
            self._stamp = stamp
        return changed

    def _is_there_now(self) -> bool:
        """Whether the database, which was not there, is, or would now be elsewhere; or what ships may be."""
        from kernel_selector import db

        try:
            self._opened()
        except db.DatabaseMissing as error:
            still = (f"{NONE_YET} {error}",) == self._knowledge.own.caveats
            return not still or bool(self._knowledge.unusable)
        return True


def shared_selector(
    database: str | Path | Database | None = None, *, shipped: bool | None = None
) -> Selector:
    """The Selector over a database, as `Selector` takes both. Raises as that."""
    require_database(database)
    environment_url = os.environ.get("SELECTOR_DATABASE_URL") if database is None else None
    return _shared(database, environment_url, are_wanted(shipped))


@lru_cache(maxsize=8)
def _shared(
    database: str | Path | Database | None,
    environment_url: str | None,  # noqa: ARG001 - part of what makes one
    shipped: bool,
) -> Selector:
    return Selector(database, shipped=shipped)
