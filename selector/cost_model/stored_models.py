"""Cost models read from the database; damaged ones raise ModelVersionMismatch."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kernel_selector.kernels import registry

from ..errors import ModelVersionMismatch

if TYPE_CHECKING:
    from kernel_selector.db import StoredModel


def latest_model(connection: Any, operator: str, *, skip: int = 0) -> StoredModel | None:
    """The latest cost model of an operator, or the one so many before it; None without one.

    Raises ModelVersionMismatch for an unreadable one.
    """
    from kernel_selector.db import InvalidModel, models

    try:
        return models.latest(connection, operator=operator, skip=skip)
    except InvalidModel as error:
        raise ModelVersionMismatch(
            f"The latest cost model of {operator} in the database cannot be read ({error}). "
            f"Run `selector train {operator}`."
        ) from error


def model_listing(connection: Any) -> list[dict[str, Any]]:
    """All models, as `models.listing`. Raises ModelVersionMismatch when one of them is damaged."""
    from kernel_selector.db import InvalidModel, models

    try:
        return models.listing(connection)
    except InvalidModel as error:
        raise ModelVersionMismatch(
            f"The evaluation of a cost model in the database cannot be read ({error}). Delete that row of "
            "the table `model`, or restore the database from a copy; measurements are not affected."
        ) from error


def readable_models(connection: Any) -> list[dict[str, Any]]:
    """The models of `model_listing`, without those that are damaged."""
    from kernel_selector.db import InvalidModel, models

    try:
        return models.listing(connection)
    except InvalidModel:
        found: list[dict[str, Any]] = []
        for number in models.numbers(connection):
            with suppress(InvalidModel):
                found += models.listing(connection, only=number)
        return found


def usable_model(connection: Any, operator: str) -> StoredModel | None:
    """The latest cost model of an operator when choices can be made with it, else None."""
    from .predictor import Predictor

    try:
        stored = latest_model(connection, operator)
        if stored is not None:
            Predictor(stored, registry.operator(operator))
    except ModelVersionMismatch:
        return None
    return stored
