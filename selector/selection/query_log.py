"""Questions that were answered without being sure, remembered beside the database: the next to measure.

A line of JSON each, in `<database>.asked.jsonl`: a problem, and the key of the device that it was asked
about. Nothing else is kept, nothing leaves the machine, and `SELECTOR_REMEMBER=0` keeps nothing at all.
Whoever asks by a service has a share of the file, so that no token fills it for all others.
"""

from __future__ import annotations

import json
import logging
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Problem, SelectorError
from kernel_selector.kernels.contract.record import LAUNCHED

from .choice import Choice

if TYPE_CHECKING:
    from kernel_selector.db import Database

VARIABLE = "SELECTOR_REMEMBER"
LARGEST_BYTES = 2**18  # of the file: some thousand questions; then no more are added
SHARE_BYTES = LARGEST_BYTES // 4  # of one asker, for as long as a process lives
MOST_NOTED = 2**14  # questions of which a process knows that it noted them: more than a file has room for

Question = tuple[object, ...]  # operator, problem and device
State = tuple[int, int]  # of a file: when it was changed last, in nanoseconds, and its bytes

ASKER: ContextVar[str] = ContextVar("asker", default="")  # name of a token; "" without any, and no share

log = logging.getLogger(__name__)
_shares: Counter[str] = Counter()  # bytes that each asker has added


def file_of(database: Database | None) -> Path:
    """Path of the file that keeps a database's questions; beside the user's own for one that is no file."""
    from kernel_selector.db.engine import location

    path = location.resolve(database.location).path if database is not None else None
    path = path or location.resolve().path or location.default_path()
    return path.with_name(f"{path.stem}.asked.jsonl")


def noting(database: Database | None) -> Callable[[Iterable[Choice]], None]:
    """Function that remembers uncertain answers, each question once, unless users turn that off."""
    if os.environ.get(VARIABLE, "1").lower() in ("0", "false", "no", "off"):
        return lambda _choices: None
    noted: set[Question] = set()
    place = cache(lambda: file_of(database))
    full: State | None = None  # of the file when it had no more room; most services ask this alone, and soon

    def noted_once(choices: Iterable[Choice]) -> None:
        nonlocal full
        new: dict[Question, Choice] = {}
        for choice in filter(is_uncertain, choices):
            if full is not None and not new and _state(place()) == full:
                return
            question = choice.problem.operator, choice.problem.row, choice.device.key
            if question not in noted:
                new.setdefault(question, choice)
        new = within_share(new, ASKER.get())
        if new:
            if len(noted) > MOST_NOTED:  # else they would be kept for as long as the process lives
                noted.clear()
            noted.update(new)
            file = place()
            full = None if note(file, new.values()) else _state(file)

    return noted_once


def within_share(choices: dict[Question, Choice], asker: str) -> dict[Question, Choice]:
    """The first choices, as far as the share of their asker goes, which they use up; all without an asker."""
    if not asker:
        return choices
    room = SHARE_BYTES - _shares[asker]
    found = dict(zip(choices, _fitting(choices.values(), room), strict=False))
    _shares[asker] += sum(len(_line(one)) for one in found.values())
    return found


def _state(file: Path) -> State | None:
    """When a file was changed and how long it is; None without one."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def is_uncertain(choice: Choice) -> bool:
    """Whether a measurement might change the choice: nothing was measured at the problem, and another
    candidate may be faster, as far as its interval goes, or has no figure at all."""
    if choice.source not in ("model", "extrapolated", "transfer", "default") or choice.objective != "time":
        return False
    if choice.regime != LAUNCHED:  # the notes are of what to measure launched
        return False
    if not choice.may_be_beaten:
        return False
    return choice.problem.operator in registry.operators()  # else measured elsewhere: none can be profiled


def note(file: Path, choices: Collection[Choice]) -> bool:
    """Add questions to a file, as far as there is room; an answer is worth more than the note of it.

    They are one write, so that lines of other processes come before or after all of them. False where there
    is no room for any.
    """
    try:
        if file.exists() and not any(_fitting(choices, LARGEST_BYTES - file.stat().st_size)):
            return False
        file.parent.mkdir(parents=True, exist_ok=True)
        with open(file, "ab", buffering=0, opener=_private) as handle:
            handle.write(b"".join(map(_line, _fitting(choices, LARGEST_BYTES - handle.tell()))))
    except OSError as error:
        log.info("%d questions are not remembered: %s", len(choices), error)
    return True


def _private(path: str, flags: int) -> int:
    """Descriptor of a file that is for its owner alone where it is new, as a database is."""
    return os.open(path, flags, 0o600)


def _fitting(choices: Iterable[Choice], room: int) -> Iterator[Choice]:
    """The first choices, as many as there is room for the lines of, in bytes."""
    for choice in choices:
        room -= len(_line(choice))
        if room < 0:
            return
        yield choice


def _line(choice: Choice) -> bytes:
    problem = {"operator": choice.problem.operator, "hyperparameters": dict(choice.problem.as_dict)}
    return json.dumps({**problem, "device": choice.device.key}).encode() + b"\n"


def asked(database: Database | None, device_key: str) -> list[Problem]:
    """The problems that were asked about a kind of device, each once, in the order of asking.

    A line that was cut, by a full disk for example, or is of another version of an operator, is passed
    over.
    """
    file = file_of(database)
    found: dict[Problem, None] = {}
    for line in file.read_text(errors="replace").splitlines() if file.exists() else ():
        try:
            data = json.loads(line)
            if data["device"] == device_key:
                found[registry.operator(data["operator"]).problem(data["hyperparameters"])] = None
        except (SelectorError, ValueError, KeyError, TypeError):
            log.info("%s: not a question of this version: %s", file, line[:100])
    return list(found)
