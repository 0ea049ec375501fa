"""Measurements that come with this package, for questions about which the user's own database knows nothing.

They are a database like any other, packed into one file; `python -m benchmarks.ship` makes it of the records
in benchmarks/results/. It is unpacked into the user's cache folder when it is first needed.
"""

from __future__ import annotations

import hashlib
import lzma
import os
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from kernel_selector.kernels.contract import SelectorError

from ..choice import Choice
from ..query import Query

if TYPE_CHECKING:
    from ..engine import Selector

PACKED = Path(__file__).with_name("measurements.db.xz")
USED = "Decided on the measurements that come with this package: your database has none to decide on."
CPU = "amd-epyc"  # the key of the processor whose measurements ship
OF_ANOTHER = (
    "Measured on another processor, {}, since nothing is known of this one: `selector profile` measures it."
)
UNUSABLE = "The measurements that come with this package cannot be used: "


def or_shipped(choice: Choice, query: Query, source: object) -> Choice | SelectorError:
    """The answer of the shipped measurements, where another one rests on nothing and these know more.

    Only for the user's own database: one that was named, as `source` or by SELECTOR_DATABASE_URL, is taken
    at its word.
    """
    if choice.source != "default" or source is not None:  # most of all: nothing is imported for them
        return choice
    from kernel_selector.db import DatabaseError

    if _named(source):
        return choice
    try:
        (found,) = _selector().choose_each([query])
    except (DatabaseError, OSError) as error:
        return replace(choice, caveats=(*choice.caveats, f"{UNUSABLE}{error}"))
    if not isinstance(found, SelectorError) and found.source == "default" and _unknown_cpu(choice):
        found = _of_another_cpu(choice, query)
    if isinstance(found, SelectorError):  # that nothing fits into the memory limit, for example
        return found
    return choice if found.source == "default" else replace(found, caveats=(*found.caveats, USED))


def _unknown_cpu(choice: Choice) -> bool:
    """Whether it is of a processor of which the user's database has no cost model that could be asked."""
    return choice.device.kind == "cpu" and not any("No prediction" in caveat for caveat in choice.caveats)


def _of_another_cpu(choice: Choice, query: Query) -> Choice | SelectorError:
    """What the measurements of the shipped processor say, which are better than nothing, and say so."""
    (found,) = _selector().choose_each([replace(query, device=CPU)])
    if isinstance(found, SelectorError):
        return found
    caveats = (*found.caveats, OF_ANOTHER.format(found.device.name))
    return replace(found, device=choice.device, torch_device=choice.torch_device, caveats=caveats)


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
    """The database as a file, unpacked once for each version of it. Raises OSError."""
    from kernel_selector.db.location import cache_folder

    packed = PACKED.read_bytes()
    path = cache_folder() / f"shipped-{hashlib.sha256(packed).hexdigest()[:16]}.sqlite"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as part:
            part.write(lzma.decompress(packed))
        os.replace(part.name, path)  # other processes see all of the file or none
    return path
