"""The functions of `import selector`: thin, and light until they are called."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from .choice import Choice
from .profiling import opened
from .shared import shared_selector

if TYPE_CHECKING:
    from kernel_selector.db import Database

    from .evaluation import Evaluation
    from .learning import TrainingReport


def choose(
    operator: str | None = None,
    /,
    *,
    device: object = None,
    memory: str | int | None = None,
    objective: str = "time",
    override: str | None = None,
    database: str | Path | Database | None = None,
    **hyperparameters: object,
) -> Choice:
    """The fastest implementation for a layer's hyperparameters, from what was measured.

    `selector.choose(hidden=512, batch=64).build()` is the module; `.explain()` says why. Without an
    operator an LSTM is meant. `device` is "cpu", "cuda:0", a known name such as "h200", a `Device`, or
    None for this machine's default. `memory` limits the peak beyond parameters and inputs: bytes, or
    text such as "1GiB". `objective` is "time" or "memory". `override` names an implementation to use
    whatever was measured; so does the environment variable SELECTOR_OVERRIDE_<OPERATOR>, which an
    argument outweighs. `database` is as for `Selector`.

    Raises subclasses of SelectorError, which name the value and what would have been accepted:
    UnknownOperator, UnknownHyperparameter, InvalidHyperparameter, AmbiguousHyperparameter,
    UnknownDevice, UnknownImplementation, InvalidRequest, UnsupportedProblem, NothingFits,
    ModelVersionMismatch, and those of the database.
    """
    return shared_selector(database).choose(
        operator, device=device, memory=memory, objective=objective, override=override, **hyperparameters
    )


def train(
    operator: str = "lstm",
    *,
    database: str | Path | Database | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> TrainingReport:
    """Learn a cost model from the measurements of an operator and store it in their database.

    `progress` is told what begins, its number and how many there are, by operators that were imported.
    Raises NoMeasurements when there are too few, UnknownOperator, and the errors of the database.
    """
    from . import learning

    with opened(database) as store:
        return learning.train(operator, store, progress)


def evaluate(
    operator: str = "lstm",
    *,
    database: str | Path | Database | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Evaluation:
    """How well the cost model chooses on what it has not seen, beside baselines. Raises as `train`."""
    from . import learning

    with opened(database) as store:
        return learning.evaluate(operator, store, progress)
