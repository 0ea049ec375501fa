"""Settings of the service: environment (`SELECTOR_MAX_BODY_BYTES=131072`) or a TOML file.

The environment outweighs the file, which `SELECTOR_SETTINGS` names; what neither says has its default.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

from .extras import require_service

require_service()

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from kernel_selector.kernels.contract import SelectorError, UnknownDevice
from selector.selection.devices import named

PREFIX = "SELECTOR_"
FILE_VARIABLE = PREFIX + "SETTINGS"
# variables of other parts, which a misspelt setting may look like
OTHERS = frozenset(PREFIX + name for name in ("SETTINGS", "DATABASE_URL", "TOKEN", "REMEMBER", "DEBUG"))
ALIKE = 0.85  # from which on a name is taken for another one misspelt
LARGEST_BODY_BYTES = 256 * 2**20

Bytes = Annotated[int, Field(ge=1, le=LARGEST_BODY_BYTES)]
Price = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class InvalidSetting(SelectorError, ValueError):
    """A setting of the service has a value that it cannot have."""


class Settings(BaseSettings):
    """Limits and habits of the service. Where the database lies is the selector's business."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid")

    max_body_bytes: Bytes = Field(64 * 1024, description="longest body of one question")
    max_batch_bytes: Bytes = Field(2**20, description="longest body of many questions")
    max_upload_bytes: Bytes = Field(16 * 2**20, description="longest body of measurements")
    tokens: Literal["auto", "required"] = Field(
        "auto", description="`auto`: reading over the loopback interface needs no token; `required`: it does"
    )
    requests_per_s: float = Field(
        0.0, ge=0, le=1e6, description="most requests per second of one token, in each process; 0: any number"
    )
    prices: dict[str, Price] = Field(
        {}, description='price of an hour of a device, by a name of it: `{"h100": 2.5, "l4": 0.7}`'
    )
    shipped: bool = Field(True, description="whether measurements that come with the package count too")
    access_log: bool = Field(True, description="one line a request on stderr")
    log_format: Literal["text", "json"] = Field(
        "text", description="how the log is written: `text`, or `json` for one document a line"
    )
    shutdown_s: int = Field(
        10, ge=0, le=3600, description="seconds that `selector serve` gives requests in flight when it ends"
    )

    @property
    def larger_bodies(self) -> dict[str, int]:
        """Paths whose bodies may be longer than `max_body_bytes`, with their limits."""
        return {
            "/v1/choices:batch": self.max_batch_bytes,
            "/v1/throughputs": self.max_batch_bytes,
            "/v1/measurements": self.max_upload_bytes,
            "/v1/profiling-jobs": self.max_batch_bytes,
            "/v1/profiling-tasks:finish": self.max_upload_bytes,
        }

    @field_validator("prices")
    @classmethod
    def _of_known_devices(cls, prices: dict[str, float]) -> dict[str, float]:
        for name in prices:
            try:
                named(name, ())
            except UnknownDevice as error:
                raise ValueError(str(error).rstrip(".")) from None
        return prices

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - no such file is read
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments, then the environment, then the file."""
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, _file())

    @classmethod
    def load(cls, **given: Any) -> Settings:
        """Settings with what arguments, environment and file say.

        Raises InvalidSetting, which names the setting, for a value that does not fit or a file of no use.
        """
        try:
            return cls(**given)
        except ValidationError as error:
            faults = "; ".join(_described(item) for item in error.errors())
            raise InvalidSetting(f"{faults}. `selector config` shows what is in force.") from error
        except (OSError, ValueError) as error:  # the file; tomllib's errors are ValueErrors
            raise InvalidSetting(f"{FILE_VARIABLE}={os.environ.get(FILE_VARIABLE)}: {error}.") from error


@dataclass(frozen=True)
class InForce:
    """A setting, its value, and where that comes from: default, file or environment."""

    name: str
    value: Any
    source: str
    meaning: str


def in_force() -> list[InForce]:
    """Every setting as it is. Raises InvalidSetting."""
    settings = Settings.load()
    given = {name.upper() for name in os.environ}
    filed = TomlConfigSettingsSource(Settings, _file())()
    return [
        InForce(
            name=name,
            value=getattr(settings, name),
            source="environment"
            if (PREFIX + name).upper() in given
            else "file"
            if name in filed
            else "default",
            meaning=field.description or "",
        )
        for name, field in Settings.model_fields.items()
    ]


def misspelt() -> list[str]:
    """Warnings about variables whose names nearly are those of settings: they have no effect."""
    names = [(PREFIX + name).upper() for name in Settings.model_fields]
    given = sorted({name.upper() for name in os.environ} - {*names, *OTHERS})
    close = ((name, get_close_matches(name, names, n=1, cutoff=ALIKE)) for name in given)
    return [
        f"{name} is no setting, and does nothing: did you mean {found[0]}?" for name, found in close if found
    ]


def _file() -> Path | None:
    named = os.environ.get(FILE_VARIABLE)
    if not named:
        return None
    path = Path(named)
    if not path.is_file():
        raise FileNotFoundError("there is no such file")
    return path


def _described(item: Any) -> str:
    name = ".".join(map(str, item["loc"]))
    if item["type"] == "extra_forbidden":
        return f"{name} in {_file()}: there is no such setting"
    message = item["msg"][:1].lower() + item["msg"][1:]
    return f"{PREFIX}{name.upper()}={str(item['input'])[:60]!r}: {message}"
