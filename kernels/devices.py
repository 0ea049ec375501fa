"""Known devices that need not be in this machine, from `devices.json` beside this file."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from .contract import AmbiguousDevice, Device, UnknownDevice, UnsupportedDevice
from .contract.device import VENDOR_WORDS
from .contract.errors import LONGEST_SHOWN, shorten

FILE = Path(__file__).with_name("devices.json")
_NO_FIELD = {"aliases", "data_sheet", "reached", "source"}  # of a row, but not of a Device
# people write rtx4090, and 80G or 80 GB for 80GB
GLUED = re.compile(r"nvidia|tesla|geforce|rtx|gtx|titan|pro(?=\d)")
SIZE = re.compile(r"(\d+)[ _-]?g(?:i?b)?\b")


@dataclass(frozen=True)
class _Entry:
    device: Device
    spellings: tuple[frozenset[str], ...]  # sets of words: of the name, and of each alias
    aliases: tuple[str, ...]

    @property
    def words(self) -> frozenset[str]:
        """All words of the name and the aliases."""
        return frozenset[str]().union(*self.spellings)


@cache
def known_devices() -> Mapping[str, Device]:
    """Every device of the shipped table by key, sorted."""
    found = {entry.device.key: entry.device for entry in _table()}
    return MappingProxyType({key: found[key] for key in sorted(found)})


def known_device(name: str) -> Device:
    """The device of a name such as `h200`, `NVIDIA H200`, `a100-80gb` or `rtx4090`: of variants the
    commonest. Raises as `variants`.
    """
    return variants(name)[0]


def variants(name: str, measured: Iterable[str] = ()) -> tuple[Device, ...]:
    """The devices of the table that a name may mean, all of one model, the commonest first.

    Case, punctuation and vendor words do not matter, and words may be left out. Raises AmbiguousDevice,
    which names all that could be meant, for a name that fits several models; UnsupportedDevice for a device
    of a kind without implementations; UnknownDevice, which names the closest and all that are known, those of
    the keys in `measured` among them.
    """
    asked = _words(name)
    exact = [entry.device for entry in _table() if asked in entry.spellings]
    meant = exact or [entry.device for entry in _table() if asked and asked <= entry.words]
    if len({device.model for device in meant}) > 1:
        keys = ", ".join(sorted(device.key for device in meant))
        raise AmbiguousDevice(f"Device {shorten(name)} may be any of {keys}: say which one.")
    if not meant:
        raise _unknown(name, asked, {*known_devices(), *measured})
    return tuple(meant)


def _unknown(name: str, asked: frozenset[str], keys: set[str]) -> UnknownDevice:
    for row in _file()["in_part"]:
        if any(re.fullmatch(row["words"], word) for word in asked):
            return UnknownDevice(
                f"Device {shorten(name)} is {row['what']}: ask in the machine that has it, where its rates "
                "are measured, or with a Device of these figures."
            )
    for row in _file()["elsewhere"]:
        if any(re.fullmatch(row["words"], word) for word in asked):
            return UnsupportedDevice(
                f"Device {shorten(name)} is {row['what']}: only NVIDIA GPUs and CPUs have implementations "
                "here. `selector devices` lists those that can be named."
            )
    spelled = _spelled(keys)
    close = get_close_matches(slug(str(name)[:LONGEST_SHOWN]), spelled, n=1)
    hint = f"Did you mean {spelled[close[0]]!r}? " if close else ""
    return UnknownDevice(f"Unknown device {shorten(name)}. {hint}Known: {', '.join(sorted(keys))}.")


@cache
def _file() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FILE.read_text())
    return found


@cache
def _table() -> tuple[_Entry, ...]:
    """The devices in the order of the file."""
    entries = []
    for row in _file()["devices"]:
        described = {name: value for name, value in row.items() if name not in _NO_FIELD}
        rates = _foretold_rates(row["data_sheet"], row.get("reached", {})) if "data_sheet" in row else {}
        device = Device.from_dict({"kind": "cuda", "vendor": "NVIDIA", **rates, **described})
        spellings = (device.name, *row.get("aliases", ()))
        words = tuple(_words(text) for text in spellings)
        entries.append(_Entry(device, words, tuple(row.get("aliases", ()))))
    return tuple(entries)


def _foretold_rates(data_sheet: Mapping[str, Any], reached: Mapping[str, float]) -> dict[str, Any]:
    """The rates of a device that was not measured: its data sheet's, times the share reached of them."""
    share = {**_file()["reached"], **reached}
    return {
        "copy_bytes_per_s": 1e9 * data_sheet["gigabytes_per_s"] * share["bytes"],
        "matmul_flops_per_s": {
            dtype: 1e12 * rate * share[dtype] for dtype, rate in data_sheet["teraflops_per_s"].items()
        },
    }


def _spelled(keys: Iterable[str]) -> dict[str, str]:
    """Names by what people may have meant to write: keys and aliases, and keys without their first words.

    The last words may be missing as well, but for those of the model: `h100x` is nearer to `h800` than to
    `h100-80gb-hbm3`. That which several variants share stands for all of them.
    """
    spelled = {slug(alias): one.device.key for one in _table() for alias in one.aliases}
    shared: dict[str, set[str]] = defaultdict(set)
    for key in sorted(keys):
        words, model = key.split("-"), slug(Device(name=key, kind="").model)
        # of a processor's key nothing shorter is a name
        ends = range(1, len(words)) if key in known_devices() else ()
        for first in range(len(words)):
            spelled["-".join(words[first:])] = key
            for last in (end for end in ends if end > first):
                if model in "".join(words[first:last]):
                    shared["-".join(words[first:last])].add(key)
    alone = {words: next(iter(meant)) if len(meant) == 1 else words for words, meant in shared.items()}
    return alone | spelled


def slug(text: str) -> str:
    """A name as the key of a device with it."""
    return Device(name=text, kind="").key


def _words(text: str) -> frozenset[str]:
    apart = GLUED.sub(r" \g<0> ", SIZE.sub(r"\1gb", str(text).lower()))
    return frozenset(re.findall(r"[a-z0-9]+", apart)) - VENDOR_WORDS
