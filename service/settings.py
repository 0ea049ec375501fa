"""What can be set about the service, from the environment: `SELECTOR_MAX_BODY_BYTES=131072`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from kernel_selector.kernels.contract import SelectorError

PREFIX = "SELECTOR_"
LARGEST_BODY_BYTES = 16 * 2**20


class InvalidSetting(SelectorError, ValueError):
    """A setting of the service has a value that it cannot have."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Limits and habits of the service. Where the database lies is the selector's business.

    `max_body_bytes` bounds a request's body (a question has a few hundred bytes), `max_batch_bytes` that of
    many questions; `access_log` writes
    one line a request to uvicorn's log.
    """

    max_body_bytes: int = 64 * 1024
    max_batch_bytes: int = 2**20
    access_log: bool = True

    def __post_init__(self) -> None:
        for name in ("max_body_bytes", "max_batch_bytes"):
            value = getattr(self, name)
            if not 1 <= value <= LARGEST_BODY_BYTES:
                raise InvalidSetting(f"{name}={value!r}: expected 1 to {LARGEST_BODY_BYTES} bytes.")

    @property
    def larger_bodies(self) -> dict[str, int]:
        """Paths whose bodies may be longer than `max_body_bytes`, with their limits."""
        return dict.fromkeys(("/v1/choices:batch", "/v1/throughputs"), self.max_batch_bytes)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """Settings with what the environment says; `SELECTOR_` and the field's name in capitals.

        Raises InvalidSetting, which names the variable, for a value that does not fit.
        """
        given = os.environ if environment is None else environment
        default = cls()
        return cls(
            max_body_bytes=_whole(given, "MAX_BODY_BYTES", default.max_body_bytes),
            max_batch_bytes=_whole(given, "MAX_BATCH_BYTES", default.max_batch_bytes),
            access_log=_switch(given, "ACCESS_LOG", default.access_log),
        )


def _whole(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(PREFIX + name, str(default))
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise InvalidSetting(f"{PREFIX}{name}={text!r}: expected a whole number, such as {default}.")
    return int(text)


def _switch(environment: Mapping[str, str], name: str, default: bool) -> bool:
    text = environment.get(PREFIX + name, str(default))
    try:
        return {"1": True, "true": True, "0": False, "false": False}[text.lower()]
    except KeyError:
        raise InvalidSetting(f"{PREFIX}{name}={text!r}: expected true or false.") from None
