"""Functions of `import selector`. Heavy imports happen on the first call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

from kernel_selector.kernels.contract.errors import shorten

from .errors import InvalidRequest
from .planning import ask
from .planning.fits import Fit
from .planning.plan import Plan
from .planning.training_setup import Training
from .profiling.profile import opened
from .selection.choice import Choice
from .selection.database import require_database
from .selection.selector import shared_selector
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
    among: Sequence[str] | None = None,
    database: str | Path | Database | None = None,
    **hyperparameters: object,
) -> Choice:
    """Fastest implementation of a layer for its hyperparameters, by the measurements.

    `selector.choose(hidden=512, batch=64).build()` is the module, and `.explain()` gives the reasons. The
    environment variable SELECTOR_OVERRIDE_<OPERATOR> is an override, too; the argument outweighs it.

    Parameters
    ----------
    operator : str, optional
        LSTM when None.
    hyperparameters : int, float, bool or str, by keyword
        Under the operator's names or torch's.
    device : str or Device, optional
        "cpu", "cuda:0", a known name such as "h200", or a `Device`; this machine's default when None.
    memory : int or str, optional
        Limit of the peak beyond parameters and inputs: bytes, or text such as "1GiB".
    objective : {"time", "memory"}
    override : str, optional
        Name of the implementation to use, whatever the measurements.
    among : sequence of str, optional
        Names of the implementations to choose from; all when None.
    regime : {"launched", "compiled"}, by keyword
        Whether the layer is launched by itself, which is the default, or stands between neighbours in a graph
        of torch.compile.
    database : Database, URL or path, optional
        As for `Selector`.

    Returns
    -------
    Choice

    Raises
    ------
    UnknownOperator, UnknownHyperparameter, InvalidHyperparameter, AmbiguousHyperparameter, UnknownDevice,
    UnknownImplementation, InvalidRequest, UnsupportedProblem, NothingFits, and the errors of the database
        Subclasses of SelectorError, which name the value and what is accepted.
    """
    return shared_selector(database).choose(
        operator,
        device=device,
        memory=memory,
        objective=objective,
        override=override,
        among=among,
        **hyperparameters,
    )


class Shipped(TypedDict, total=False):
    """Further keyword arguments of `plan`: whether the measurements that come with this package count."""

    shipped: bool | None


class Use(TypedDict, total=False):
    """Further keyword arguments of `optimize`: the used outputs of the model, and what to try how long."""

    outputs: Sequence[str] | None
    arrangements: Sequence[str] | None
    budget: float | str
    progress: Callable[[str, int, int], None] | None


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
    """Report of leaving a model, in place, in the fastest arrangement that was found for it.

    Tried are layers replaced by implementations that are faster in it, the blocks replayed as CUDA graphs,
    and the whole compiled by `torch.compile`, without and with these layers. Modules keep their identity,
    parameters, hooks and mode, and the state dict its keys: only classes change, to subclasses from
    `selector.nn`, and what the model is called by. Each change is checked: outputs, and in training all
    gradients, of the example without dropout must be the original's within the gate's tolerances. For speed
    alone, steps are timed in turns within the budget, and what makes none faster is undone. With a memory
    limit, a plan or overrides replacements stay, and the report's first line says what they cost.
    `selector.restore(model)` undoes everything.

    Parameters
    ----------
    model : nn.Module
    example_inputs : Tensor, tuple or mapping
        One tensor, positional arguments, or keyword arguments. The model runs on copies, in its present mode.
    memory_limit : int or str, optional
        Limit of a training step's memory: bytes or text. The layers are then those of `selector.plan` for the
        examples' batch.
    objective : {"throughput", "device_time", "memory"}
        "device_time" is for steps whose blocks are replayed as CUDA graphs, as by `selector.replay`;
        "memory" is without a limit.
    overrides : mapping of str to str, optional
        Implementation by operator or by a module's path, whatever the measurements: `{"lstm": "hoisted"}`.
        Layers that these do not name stay torch's own, unless a plan, a memory limit or objective "memory"
        says what they get.
    plan : Plan, optional
        Plan of `selector.plan` for this model, whose implementations the layers get. Layers that it does not
        name stay torch's own, unless overrides name them, or objective "memory" says what they get.
    outputs : ("loss",), optional
        Used outputs. With the loss alone, the heads of Hugging Face's BERT and RoBERTa for masked words, and
        of GPT-2 and decoders of Llama's form, compute it without logits, and return none for calls with
        labels; decoders then fill no cache either, unless they are asked to.
    arrangements : sequence of str, optional
        What is tried beside the model as it is, among "ours" (replaced layers), "replayed",
        "replayed_ours", "compiled", "compiled_ours", "reduce_overhead", "reduce_overhead_ours" and
        "max_autotune". When None all but the last for speed alone, and "ours" with a memory limit, a plan,
        overrides or objective "memory".
    budget : float or str
        Seconds, or text such as "10m", for all that is tried, 60 when not given. What has begun is finished,
        and no compilation begins that is expected to take longer than what is left.
    progress : callable, optional
        As for `train`, called as each arrangement begins; its name has the seconds that are left.
    database : Database, URL or path, optional
        As for `choose`.

    Returns
    -------
    Report

    Raises
    ------
    InvalidRequest
        For a model that the user compiled, that has uninitialized weights, or gives no loss where only that
        is used; for example inputs that cannot be copied; for arguments of no use.
    UnknownOperator, UnknownImplementation
        For overrides.
    UnsupportedProblem
        For an override that refuses its layer.

    Errors of `selector.plan` with a memory limit, and of the model on the example, pass through. The model is
    then unchanged.
    """
    from .models.rewriting import optimize as optimizing
    from .models.rewriting.budget import SECONDS
    from .models.rewriting.options import optimize_options, plan_within, search_options

    require_database(database)
    outputs = more.pop("outputs", None)
    names, budget = more.pop("arrangements", None), more.pop("budget", SECONDS)
    search = search_options(names, budget, memory_limit, more.pop("progress", None))
    _require_no("optimize", more)
    if memory_limit is not None:
        if plan is not None:
            raise InvalidRequest("memory_limit and plan are both given: a plan has a limit of its own.")
        plan = plan_within(
            memory_limit, model, example_inputs, objective=objective, outputs=outputs, database=database
        )
    options = optimize_options(objective, overrides, plan, outputs=outputs, database=database, search=search)
    return optimizing.optimize(model, example_inputs, options)


def replay(model: nn.Module, example_inputs: object) -> list[ReplayedStack]:
    """CUDA graph replay, in training, of the blocks of a model's stacks that it makes faster.

    A stack is a list of modules of one class, as the layers of a transformer are. Calls like the example's,
    under the same autocast, are replayed from then on: the host launches two graphs a block and step. All
    other calls run as before: other shapes, evaluation, a pass while another is still to be differentiated,
    modules with hooks, checkpointing. Steps with and without graphs are timed in turns, and the graphs are
    dropped where they are no faster. Optimize first: what `optimize` changes is not replayed.
    `selector.restore(model)` ends the replay.

    Parameters
    ----------
    model : nn.Module
    example_inputs : Tensor, tuple or mapping
        As for `optimize`.

    Returns
    -------
    list of ReplayedStack
        For each stack the replayed blocks, or the reason for none.

    Raises
    ------
    InvalidRequest
        For a model that is not on an NVIDIA GPU, is compiled, or is in evaluation mode.

    Errors of the model on the example pass through.
    """
    from .models.rewriting import arrangement_search

    return arrangement_search.replay(model, example_inputs)


def restore(model: nn.Module) -> int:
    """Undo `optimize` and `replay`; returns the number of restored modules.

    Weights keep their present values.
    """
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
    **more: Unpack[Shipped],
) -> Plan:
    """Fastest training plan of a model within a memory limit: implementations by layer, and the batch
    size.

    Parameters
    ----------
    model : str, Model, or tuple (nn.Module, example_inputs)
        Name of a published model ("bert-large"), a planning model, or a torch module in training with example
        inputs.
    device : str or Device, optional
        It need not be in this machine.
    memory_limit : int or str, optional
        Limit of all memory: bytes or text; the device's memory when None.
    batch : int or "auto"
    training : Training, optional
    measure : callable, optional
        Peak bytes of one real step of a plan. The plan is solved again, with more memory set aside, until the
        measured peak is within the limit.
    database : Database, URL or path, optional
    shipped : bool, optional
        Whether the measurements that come with this package count; SELECTOR_SHIPPED says it when None.

    Returns
    -------
    Plan

    Raises
    ------
    NothingFits, NoMeasurements, InvalidRequest, UnknownDevice, UnsupportedProblem, and the errors of the
    database
    """
    shipped = more.pop("shipped", None)
    _require_no("plan", more)
    planner = ask.planner_of(_as_model(model), device, training, database, shipped)
    return ask.plan(planner, memory_limit, batch, measure)


def fits(
    model: object,
    device: object = None,
    *,
    batch: int | None = None,
    reserve: str | int | float = "5%",
    training: Training | None = None,
    database: str | Path | Database | None = None,
    shipped: bool | None = None,
) -> Fit:
    """Fit of a model's training in a device's memory, true or false as such, with the peak by kind.

    Parameters
    ----------
    model : str, Model, tuple (nn.Module, example_inputs), or Plan
        As of `plan`, or a plan, which is judged as it is.
    device : str or Device, optional
        Any that has a name, such as "a100-40gb"; it need not be in this machine. This machine's default when
        None, or the plan's.
    batch : int, optional
        Samples at once: the plan's, the example inputs', or 1 when None.
    reserve : str, int or float
        What stays free, for the allocator's fragments and other programs: a share such as "5%" or 0.05, or
        bytes such as "2GiB".
    training, database, shipped : optional
        As of `plan`.

    Returns
    -------
    Fit

    Raises
    ------
    NoMeasurements, InvalidRequest, UnknownDevice, UnsupportedProblem, and the errors of the database
    """
    if isinstance(model, Plan):
        if batch not in (None, model.batch) or training is not None:
            raise InvalidRequest(
                f"batch={shorten(batch)}, training={shorten(training)}: the plan has batch {model.batch} "
                "and its own training; leave both out, or plan anew."
            )
        return ask.fits_elsewhere(model, device, reserve, database, shipped)
    known = _as_model(model)
    size = batch if batch is not None else _samples(model)
    return ask.fits(ask.planner_of(known, device, training, database, shipped), size, reserve)


def _samples(model: object) -> int:
    """The number of samples of example inputs; 1 of a model without."""
    if not isinstance(model, tuple):
        return 1
    from .models.as_model import samples

    return samples(model[1])


def pareto(
    model: object,
    device: object = None,
    memory_limit: str | int | None = None,
    *,
    memory_limits: Sequence[str | int] = (),
    training: Training | None = None,
    database: str | Path | Database | None = None,
    shipped: bool | None = None,
) -> list[Point]:
    """Pareto front of throughput and memory: one plan for each memory limit.

    Arguments and errors are those of `plan`. Without `memory_limits`, a dozen limits up to `memory_limit` are
    taken.
    """
    planner = ask.planner_of(_as_model(model), device, training, database, shipped)
    return ask.pareto(planner, memory_limit, memory_limits)


def _require_no(function: str, more: Mapping[str, object]) -> None:
    """Raise TypeError for keyword arguments that a function does not have."""
    if more:
        raise TypeError(f"{function}() got an unexpected keyword argument {next(iter(more))!r}")


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
    """Cost model trained on an operator's measurements and stored in their database.

    Parameters
    ----------
    operator : str
    database : Database, URL or path, optional
    progress : callable, optional
        Called with the name of each step, its number and their count.

    Returns
    -------
    TrainingReport

    Raises
    ------
    NoMeasurements
        When there are too few measurements.
    UnknownOperator, and the errors of the database.
    """
    from .training import train as learning
    from .training.dataset import sources_of_measurements

    with opened(database, otherwise=sources_of_measurements(operator)) as store:
        return learning.train(operator, store, progress)


def evaluate(
    operator: str = "lstm",
    *,
    device: str | None = None,
    database: str | Path | Database | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Evaluation:
    """Quality of the cost model's choices on held-out problems, beside baselines.

    Parameters
    ----------
    operator : str
    device : str, optional
        Kind of device whose measurements count; all when None.
    database : Database, URL or path, optional
    progress : callable, optional
        As for `train`.

    Returns
    -------
    Evaluation
        Slowdowns against the fastest measured implementation; 1 is perfect.

    Raises
    ------
    UnknownDevice, and the errors of `train`.
    """
    from .training import train as learning
    from .training.dataset import sources_of_measurements

    with opened(database, otherwise=sources_of_measurements(operator)) as store:
        return learning.evaluate(operator, store, progress, device=device)
