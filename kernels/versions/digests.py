"""Digests of definitions with all that they reach: of what they compute, and of the way it is reached.

A definition that another one refers to counts by its digest, and not by its name or place, so that files and
names may change. Definitions that refer to each other are numbered in the order in which they are met.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

from .canonical import Tokens, is_device_code, tokens
from .definitions import Place, Sources

# ways to reach what is computed: checks, states and packing of modules, launching, autograd's wrappers. What
# is added to a GPU's work does not belong into these files
HOST = (
    *("runtime/autograd.py", "runtime/torch_operators.py", "runtime/triton_launch.py"),
    *("activations/traced.py", "norms/module.py", "norms/traced.py", "operators/linear/_traced.py"),
    "recurrent/module.py",
)
DEVICE = ("mapping", "matmul")  # folders of kernels' generators, and of what chooses their launches
NOTHING = "nothing"


class Digest(NamedTuple):
    """Hashes of a definition and what it reaches; NOTHING for a part that has nothing to it."""

    kernel: str
    host: str


class Digests:
    """The digests of the definitions below a folder, as its files are when they are first asked for."""

    def __init__(self, root: Path) -> None:
        self._sources = Sources(root)
        self._root = root
        self._found: dict[Place, Digest] = {}
        self._tokens: dict[Place, Tokens] = {}
        self._order: dict[Place, int] = {}  # of visits, as in Tarjan's algorithm
        self._open: list[Place] = []
        self._belonging: dict[Place, tuple[bool, bool]] = {}

    def of(self, file: Path, name: str) -> Digest | None:
        """The digest of a name in a file, defined or imported there; None where it is nothing of ours.

        Raises SyntaxError, ValueError and OSError for sources that cannot be read.
        """
        meaning = self._sources.meaning(file, name)
        if not isinstance(meaning, Place):
            return None
        if meaning not in self._found:
            self._order.clear()
            self._open.clear()
            self._visit(meaning)
        return self._found[meaning]

    def release(self) -> None:
        """Forget the files, and keep the digests."""
        self._sources = Sources(self._root)
        self._tokens.clear()
        self._belonging.clear()

    def _visit(self, place: Place) -> int:
        """Digests of a definition and all below it; gives the earliest open one that it reaches."""
        lowest = self._order[place] = len(self._order)
        self._open.append(place)
        for other in self._references(place):
            if other in self._found:
                continue
            lowest = min(lowest, self._order[other] if other in self._order else self._visit(other))
        if lowest == self._order[place]:
            digests: dict[Place, Digest] = {}
            circle = self._open[self._open.index(place) :]
            del self._open[-len(circle) :]
            for one in circle:
                digests[one] = Digest(self._digest(one, circle, 0), self._digest(one, circle, 1))
            self._found |= digests
        return lowest

    def _references(self, place: Place) -> list[Place]:
        if place not in self._tokens:
            self._tokens[place] = tokens(self._sources, place)
        return [one for one in self._tokens[place] if isinstance(one, Place)]

    def _digest(self, start: Place, circle: list[Place], part: int) -> str:
        """Of one definition of a circle: of them all, in the order in which they are met from it."""
        met = [start]
        texts: list[str] = []
        for place in met:  # grows
            counts = self._parts(place)[part]
            found = []
            for one in self._tokens[place]:
                if not isinstance(one, Place):
                    if counts:
                        found.append(one)
                elif one in circle:
                    if one not in met:
                        met.append(one)
                    found.append(f"#{met.index(one)}")
                elif counts or self._found[one][part] != NOTHING:
                    found.append(self._found[one][part])
            texts += found if counts else ["passes", *sorted(set(found))]
        if texts == ["passes"]:
            return NOTHING
        return hashlib.sha256("\0".join(texts).encode("utf-8", "surrogatepass")).hexdigest()

    def _parts(self, place: Place) -> tuple[bool, bool]:
        """Whether a definition belongs to what is computed, and to how. What is not clearly one is both."""
        if place not in self._belonging:
            inside = place.file.relative_to(self._root)
            is_host = inside.as_posix() in HOST
            is_device = inside.parts[0] in DEVICE or is_device_code(self._sources, place)
            self._belonging[place] = not is_host, is_host or not is_device
        return self._belonging[place]
