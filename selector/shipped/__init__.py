"""Measurements that come with this package, for questions about which the user's own database knows nothing.

They are a database like any other, packed into one file; `python -m scripts.release.ship` makes it of the
records in benchmarks/results/. It is unpacked into the user's cache folder when it is first needed.
"""

from __future__ import annotations

import hashlib
import lzma
import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard

from kernel_selector.kernels.contract import SelectorError, UnknownDevice

from ..choice import Choice
from ..query import Query

if TYPE_CHECKING:
    from ..engine import Selector

Answer = Choice | SelectorError
PACKED = Path(__file__).with_name("measurements.db.xz")
USED = "Decided on the measurements that come with this package: your database has none to decide on."
CPU = "amd-epyc"  # the key of the processor whose measurements ship
OF_ANOTHER = (
    "Measured on another processor, {}, since nothing is known of this one: "
    "`selector profile --operator all` measures it."
)
UNUSABLE = "The measurements that come with this package cannot be used: "


def or_shipped(answers: Sequence[Answer], queries: Sequence[Query], source: object) -> list[Answer]:
    """The answers of the shipped measurements, where others rest on nothing and these know more.

    So are those about a device that has its name in these measurements alone. Only for the user's own
    database: one that was named, as `source` or by SELECTOR_DATABASE_URL, is taken at its word.
    """
    found = list(answers)
    if source is not None:  # most of all: nothing is imported for them
        return found
    open_ones = {index: one for index, one in enumerate(found) if _rests_on_nothing(one)}
    if not open_ones:
        return found
    from kernel_selector.db import DatabaseError

    if _named(source):
        return found
    try:
        known = _known(list(open_ones.values()), [queries[index] for index in open_ones])
    except (DatabaseError, OSError) as error:
        for index, one in open_ones.items():
            if isinstance(one, Choice):
                found[index] = replace(one, caveats=(*one.caveats, f"{UNUSABLE}{error}"))
        return found
    for (index, own), other in zip(open_ones.items(), known, strict=True):
        found[index] = _better(own, other)
    return found


def _rests_on_nothing(answer: Answer) -> bool:
    if isinstance(answer, Choice):
        return answer.source == "default"
    return isinstance(answer, UnknownDevice)


def _better(own: Answer, shipped: Answer) -> Answer:
    """The shipped answer unless it rests on nothing either; its error too: that nothing fits, for example."""
    if isinstance(shipped, SelectorError):
        return shipped
    if shipped.source == "default" and isinstance(own, Choice):
        return own
    return replace(shipped, caveats=(*shipped.caveats, USED))


def _unknown_cpu(answer: Answer) -> TypeGuard[Choice]:
    """Whether it is of a processor of which the user's database has no cost model that could be asked."""
    return (
        isinstance(answer, Choice)
        and answer.device.kind == "cpu"
        and not any("No prediction" in caveat for caveat in answer.caveats)
    )


def _known(own: Sequence[Answer], queries: Sequence[Query]) -> list[Answer]:
    """The shipped answers; about a processor of which nothing is known those of the one that ships."""
    known = list(_selector().choose_each(queries))
    again = {
        index: asked
        for index, (asked, one) in enumerate(zip(own, known, strict=True))
        if isinstance(one, Choice) and one.source == "default" and _unknown_cpu(asked)
    }
    others = _selector().choose_each([replace(queries[index], device=CPU) for index in again])
    for (index, asked), other in zip(again.items(), others, strict=True):
        known[index] = _of_another_cpu(asked, other)
    return known


def _of_another_cpu(own: Choice, other: Answer) -> Answer:
    """The answer for the shipped processor, as one for the processor that was asked about, which says so."""
    if isinstance(other, SelectorError):
        return other
    caveats = (*other.caveats, OF_ANOTHER.format(other.device.name))
    return replace(other, device=own.device, torch_device=own.torch_device, caveats=caveats)


def stand_in(source: object) -> Selector | None:
    """What answers for operators of which the user's own database has nothing; None if one was named.

    Raises DatabaseError and OSError where it cannot be used.
    """
    return None if _named(source) else _selector()


def _named(source: object) -> bool:
    from kernel_selector.db.location import VARIABLE

    return source is not None or bool(os.environ.get(VARIABLE))


@cache
def _selector() -> Selector:
    from ..engine import Selector

    return Selector(unpacked())


def unpacked() -> Path:
    """The database as a file of today's revision, unpacked once for it. Raises OSError and DatabaseError."""
    from kernel_selector.db import Database
    from kernel_selector.db.location import cache_folder
    from kernel_selector.db.migrations import HEAD

    packed = PACKED.read_bytes()
    path = cache_folder() / f"shipped-{hashlib.sha256(packed).hexdigest()[:16]}-{HEAD}.sqlite"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as part:
            part.write(lzma.decompress(packed))
        Database.open(part.name, create=True).close()  # it was packed at the revision of its time
        os.replace(part.name, path)  # other processes see all of the file or none
    return path
