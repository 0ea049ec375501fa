"""Known devices that need not be in this machine, from `devices.json` beside this file."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import MappingProxyType

from .contract import AmbiguousDevice, Device, UnknownDevice
from .contract.errors import LONGEST_SHOWN, shorten

FILE = Path(__file__).with_name("devices.json")
VENDOR_WORDS = {"nvidia", "tesla", "geforce", "gpu", "graphics", "card"}


@dataclass(frozen=True)
class _Entry:
    device: Device
    spellings: tuple[frozenset[str], ...]  # sets of words: of the name, and of each alias


def known_devices() -> Mapping[str, Device]:
    """Every device of the shipped table by key, sorted."""
    return MappingProxyType({entry.device.key: entry.device for entry in _table()})


def known_device(name: str) -> Device:
    """The device of a name such as `h200`, `NVIDIA H200`, `a100-80gb` or `rtx 4090`.

    Case, punctuation and vendor words do not matter; words may be left out while only one device is
    meant. Raises AmbiguousDevice, which names all that could be meant, or UnknownDevice, which names the
    closest and all that are known.
    """
    asked = _words(name)
    exact = [entry for entry in _table() if asked in entry.spellings]
    within = [entry for entry in _table() if asked and any(asked <= words for words in entry.spellings)]
    meant = exact or within
    if len(meant) == 1:
        return meant[0].device
    if meant:
        keys = ", ".join(entry.device.key for entry in meant)
        raise AmbiguousDevice(f"Device {shorten(name)} may be any of {keys}: say which one.")
    close = _closest(asked)
    hint = f"Did you mean {close!r}? " if close else ""
    raise UnknownDevice(f"Unknown device {shorten(name)}. {hint}Known: {', '.join(known_devices())}.")


@cache
def _table() -> tuple[_Entry, ...]:
    rows = json.loads(FILE.read_text())["devices"]
    entries = []
    for row in rows:
        aliases = row.pop("aliases", [])
        device = Device.from_dict({"kind": "cuda", "vendor": "NVIDIA", **row})
        entries.append(_Entry(device, tuple(_words(text) for text in (device.name, *aliases))))
    return tuple(sorted(entries, key=lambda entry: entry.device.key))


def _closest(asked: frozenset[str]) -> str | None:
    """The key of the device with a spelling nearest to these words: vendor words count on neither side."""
    spellings = {" ".join(sorted(words)): entry.device.key for entry in _table() for words in entry.spellings}
    close = get_close_matches(" ".join(sorted(asked))[:LONGEST_SHOWN], spellings, n=1)
    return spellings[close[0]] if close else None


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"[a-z0-9]+", str(text).lower())) - VENDOR_WORDS
