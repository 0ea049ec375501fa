"""The functions of `import selector`: thin, and light until they are called."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

from kernel_selector.kernels.contract.errors import shorten

from .errors import InvalidRequest
from .planning import ask
from .planning.plan import Plan
from .planning.training_setup import Training
from .profiling.profile import opened
from .selection.choice import Choice
from .selection.database import require_database
from .selection.shared import shared_selector
from .workloads.model import Model
from .workloads.published_models import published

if TYPE_CHECKING:
    from torch import nn

    from kernel_selector.db import Database

    from .models.replay.replay import ReplayedStack
    from .models.rewriting.report import Report
    from .planning.pareto import Point
    from .training.evaluation import Evaluation, TrainingReport


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


class Use(TypedDict, total=False):
    """How a model is used, as far as `optimize` takes it by keyword beside its other arguments."""

    outputs: Sequence[str] | None


def optimize(
    model: nn.Module,
    example_inputs: object,
    *,
    memory_limit: str | int | None = None,
    objective: str = "throughput",
    overrides: Mapping[str, str] | None = None,
    plan: object = None,
    database: str | Path | Database | None = None,
    **more: Unpack[Use],
) -> Report:
    """Give an existing model the implementations that are faster in it, in place; the report says which.

    `example_inputs` are one tensor, a tuple of positional arguments, or a mapping of keyword arguments; the
    model is run on copies of them, in the mode it is in. `memory_limit` is of a training step in all, in
    bytes or as text: the layers are then what `selector.plan` counts for the examples' batch. `objective` is
    "throughput"; "device_time" for steps whose blocks are replayed as CUDA graphs, as by `selector.replay`;
    or "memory", without a limit. `overrides` names implementations by operator or by a module's path,
    whatever was measured: `{"lstm": "hoisted"}`. `plan` is what `selector.plan` made for this model: layers
    then get the implementations that it counted. `outputs=("loss",)` says that of the model's outputs the
    loss alone is used, as in training: the heads of Hugging Face's BERT and RoBERTa for masked words, and of
    GPT-2, then compute it without the logits of all words, and give none where they are called with labels.
    `database` is as for `Selector`.

    Modules keep their identity, parameters, hooks and mode, and the state dict its keys: only their class
    changes, to one of `selector.nn` that inherits from the former. What is replaced is checked: outputs, and
    in training all gradients, of the example without dropout must be the original's within the gate's
    tolerances, else it is put back. Where speed alone was asked for, steps are timed in turns for about a
    minute at most, and what makes none faster here is put back, all of it where nothing does; where memory, a
    plan or names were asked for, the report's first line is what they cost. `selector.restore(model)` undoes
    everything.

    Raises InvalidRequest for a model that is compiled, has no weights yet or gives no loss where that is all
    that is used, for example inputs that cannot be copied, and for arguments of no use, UnknownOperator and
    UnknownImplementation for overrides, UnsupportedProblem for one that refuses its layer, the errors of
    `selector.plan` with a memory limit, and what the model raises on the example. The model is then as it
    was.
    """
    from .models.rewriting import optimize as optimizing
    from .models.rewriting import options as wishes

    require_database(database)
    outputs = more.pop("outputs", None)
    if more:
        raise TypeError(f"optimize() got an unexpected keyword argument {next(iter(more))!r}")
    if memory_limit is not None:
        if plan is not None:
            raise InvalidRequest("memory_limit and plan are both given: a plan has a limit of its own.")
        plan = wishes.plan_within(
            memory_limit, model, example_inputs, objective=objective, outputs=outputs, database=database
        )
    asked = wishes.wishes_of(objective, overrides, plan, outputs=outputs, database=database)
    return optimizing.optimize(model, example_inputs, asked)


def replay(model: nn.Module, example_inputs: object) -> list[ReplayedStack]:
    """Replay the blocks of a model's stacks as CUDA graphs in training where that is faster; says which.

    A stack is a list of modules of one class, as the layers of a transformer are. The model is run on
    `example_inputs`, as of `optimize`; calls like the example's, under the same autocast, are replayed from
    then on, so that the host launches two graphs a block and step. All other calls run as before: other
    shapes, evaluation, a pass while another is still to be differentiated, modules with hooks, checkpointing.
    Steps with and without graphs are timed in turns, and the graphs are dropped where they are no faster.
    Optimize first: what `optimize` changes is not replayed, and `selector.restore(model)` ends it.

    Raises InvalidRequest for a model that is not on an NVIDIA GPU, is compiled, or is in evaluation mode, and
    what the model raises on the example.
    """
    from .models.rewriting import arranging

    return arranging.replay(model, example_inputs)


def restore(model: nn.Module) -> int:
    """Undo `optimize` and `replay`; weights stay as they are now. Returns how many modules were put back."""
    from .models.rewriting import optimize as optimizing

    return optimizing.restore(model)


def plan(
    model: object,
    device: object = None,
    memory_limit: str | int | None = None,
    batch: int | str = "auto",
    *,
    training: Training | None = None,
    measure: Callable[[Plan], int] | None = None,
    database: str | Path | Database | None = None,
) -> Plan:
    """Implementations for each kind of layer, and the batch, that train the most samples a second.

    `model` is a published one by name ("bert-large"), a `Model`, or a torch module in training together with
    example inputs, as a pair. `device` may be one that is not here. `memory_limit` is of everything, in bytes
    or as text; the device's memory when None. `measure` runs one real step of a plan and says its peak in
    bytes: then the plan is solved again, with more set aside, until the measured peak is within the limit.

    Raises NothingFits, NoMeasurements, InvalidRequest, UnknownDevice, UnsupportedProblem, and the errors of
    the database.
    """
    planner = ask.planner_of(_as_model(model), device, training, database)
    return ask.plan(planner, memory_limit, batch, measure)


def pareto(
    model: object,
    device: object = None,
    memory_limit: str | int | None = None,
    *,
    memory_limits: Sequence[str | int] = (),
    training: Training | None = None,
    database: str | Path | Database | None = None,
) -> list[Point]:
    """Throughput against memory: a point for each limit, by default for a dozen up to `memory_limit`.

    Arguments and errors as of `plan`.
    """
    planner = ask.planner_of(_as_model(model), device, training, database)
    return ask.pareto(planner, memory_limit, memory_limits)


def _as_model(given: object) -> Model:
    """A model by its parts: published, given, or traced."""
    if isinstance(given, Model):
        return given
    if isinstance(given, str):
        return published(given)
    if isinstance(given, tuple) and len(given) == 2:
        from torch import nn

        module, inputs = given
        if isinstance(module, nn.Module):
            from .models.as_model import traced

            return traced(module, inputs)
    raise InvalidRequest(
        f"model={shorten(given)}: expected a published model's name, a Model, or (module, example_inputs)."
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
    from .training import train as learning

    with opened(database) as store:
        return learning.train(operator, store, progress)


def evaluate(
    operator: str = "lstm",
    *,
    device: str | None = None,
    database: str | Path | Database | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Evaluation:
    """How well the cost model chooses on what it has not seen, beside baselines.

    device: only the measurements of this kind of device count. Raises as `train`, and UnknownDevice.
    """
    from .training import train as learning

    with opened(database) as store:
        return learning.evaluate(operator, store, progress, device=device)
