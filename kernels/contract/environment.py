"""The software that a measurement was taken with."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from .checks import check_type, check_whole


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Versions of everything that may change a time; part of each record's identity.

    A new driver or torch adds rows and makes the older ones second-best evidence.
    """

    python: str
    torch: str
    triton: str | None
    cuda: str | None
    cudnn: str | None
    driver: str | None
    threads: int  # torch's intra-op threads
    system: str  # operating system and architecture

    @cached_property
    def fingerprint(self) -> str:
        """Hash of all fields, the same for equal environments on every machine."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON-ready data, which `from_dict` reads back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Environment:
        """The environment that `to_dict` wrote.

        Raises TypeError for unknown fields, CorruptRecord for values of a wrong type.
        """
        found = cls(**data)
        check_type("Environment", str, python=found.python, torch=found.torch, system=found.system)
        optional = {name: getattr(found, name) for name in ("triton", "cuda", "cudnn", "driver")}
        check_type("Environment", (str, type(None)), **optional)
        check_whole("Environment", False, threads=found.threads)
        return found

    def differences(self, other: Environment) -> list[str]:
        """Differences from `other` in words: `torch 2.11.0 instead of 2.13.0`, the other's version first."""
        mine, theirs = asdict(self), asdict(other)
        return [
            f"{name} {theirs[name]} instead of {mine[name]}" for name in mine if mine[name] != theirs[name]
        ]
