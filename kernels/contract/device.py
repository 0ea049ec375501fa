"""A device: what the cost model may know about the hardware that a problem runs on."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from .checks import check_finite, check_type, check_whole

VENDOR_WORDS = {"nvidia", "tesla", "geforce", "gpu", "graphics", "card"}
SERIES = {"rtx", "gtx", "titan"}  # words that name no model without the next one


def spaced(name: str) -> str:
    """Name of a device with one space between words, and none at its ends: tables and tools pad names."""
    return " ".join(name.split())


@dataclass(frozen=True, kw_only=True)
class Device:
    """A GPU or CPU, from this machine (`host` set and rates measured) or from the shipped table.

    Sizes are in bytes, rates in bytes or operations per second, latencies in microseconds; None means
    not known. The host is part of the device, because launch-bound times follow the host's processor.
    """

    name: str
    kind: str  # "cuda" or "cpu": the torch device type
    vendor: str = ""
    host: str = ""  # name and core count of the processor that launches the work; "" when not of this machine
    compute_capability: tuple[int, int] | None = None
    multiprocessors: int | None = None  # streaming multiprocessors, or cores used on a CPU
    memory_bytes: int | None = None
    l2_bytes: int | None = None
    shared_bytes_per_multiprocessor: int | None = None
    copy_bytes_per_s: float | None = None  # read plus written
    matmul_flops_per_s: Mapping[str, float] = field(default_factory=dict)  # by dtype
    launch_us: float | None = None  # one small operation through torch
    barrier_us: float | None = None  # a barrier over all multiprocessors

    @cached_property
    def key(self) -> str:
        """The name as a slug, for example `nvidia-h200`: equal for all hosts with such a device."""
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")

    @cached_property
    def model(self) -> str:
        """`H200` of "NVIDIA H200 NVL", `RTX4090` of "NVIDIA GeForce RTX 4090": what clusters call a GPU."""
        words = [word for word in re.split(r"[^A-Za-z0-9]+", self.name) if word.lower() not in VENDOR_WORDS]
        count = 2 if words and words[0].lower() in SERIES else 1
        return "".join(words[:count])

    @cached_property
    def text(self) -> str:
        """The device's fields as text: equal for devices that are equal in every field."""
        return repr(self)

    @cached_property
    def fingerprint(self) -> str:
        """Identity of the device together with its host; measured rates are not part of it."""
        parts = (self.key, self.host, self.memory_bytes, self.multiprocessors)
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON-ready data, which `from_dict` reads back."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {**fields, "matmul_flops_per_s": dict(self.matmul_flops_per_s)}

    @classmethod
    def given(cls, data: Mapping[str, Any]) -> Device:
        """Device that somebody sent: `from_dict`, by its name in one spelling."""
        device = cls.from_dict(data)
        return replace(device, name=spaced(device.name))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Device:
        """The device that `to_dict` wrote.

        Raises TypeError for unknown fields, CorruptRecord for values of a wrong type.
        """
        values = dict(data)
        if values.get("compute_capability") is not None:
            values["compute_capability"] = tuple(values["compute_capability"])
        device = cls(**values)
        device._check()
        return device

    def _check(self) -> None:
        owner = "Device"
        check_type(owner, str, name=self.name, kind=self.kind, vendor=self.vendor, host=self.host)
        check_type(owner, Mapping, matmul_flops_per_s=self.matmul_flops_per_s)
        check_whole(
            owner,
            multiprocessors=self.multiprocessors,
            memory_bytes=self.memory_bytes,
            l2_bytes=self.l2_bytes,
            shared_bytes_per_multiprocessor=self.shared_bytes_per_multiprocessor,
        )
        check_finite(
            owner,
            copy_bytes_per_s=self.copy_bytes_per_s,
            launch_us=self.launch_us,
            barrier_us=self.barrier_us,
            **{f"matmul_flops_per_s[{dtype}]": rate for dtype, rate in self.matmul_flops_per_s.items()},
        )
        for number in self.compute_capability or ():
            check_whole(owner, compute_capability=number)
