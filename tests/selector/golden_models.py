"""Golden answers about whole models: plans, frontiers, what layers get on a GPU, and reports of `optimize`.

The part of `tests.selector.golden` that asks nothing of one layer alone. Everything is asked as by a user who
has measured nothing, so that the shipped measurements answer; what `optimize` tries is timed by a clock that
is made up.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import nn

import selector
from kernel_selector.db import records
from kernel_selector.kernels.contract import Device, SelectorError
from selector import Training
from selector.models.layers import Layer
from selector.models.rewriting import trials
from selector.models.rewriting.device_times import DeviceTimes
from selector.models.rewriting.paired_timing import Outcome, outcome
from selector.planning.plan import Plan
from selector.selection.selector import Selector
from selector.selection.shipped import CPU
from selector.workloads.model import Model
from selector.workloads.published_models import families, published

Golden = dict[str, Any]

GPU = "h200"
DEVICES = (GPU, CPU)  # of the shipped measurements
PLANS: dict[str, dict[str, Any]] = {  # arguments of each
    "auto, 24 GiB": {"memory_limit": "24GiB"},
    "8 samples, 80 GiB": {"memory_limit": "80GiB", "batch": 8},
    "48 samples, 120 GiB": {"memory_limit": "120GiB", "batch": 48},
    "48 samples, replayed": {"memory_limit": "120GiB", "batch": 48, "training": Training(replayed=True)},
}
LIMITS = ("11GiB", "16GiB", "40GiB")  # of frontiers
BATCHES = (1, 8, 32)  # of what layers get on a GPU


def plain(plan: Plan) -> Golden:
    """A plan's decision and figures, without what names the database's state."""
    layers = [
        [one.part, one.implementation, one.recomputed, one.count, one.source, one.device_ms, one.held_bytes]
        for one in plan.layers
    ]
    figures = ("batch", "recomputed_blocks", "step_ms", "host_ms", "samples_per_s", "peak_bytes")
    found: Golden = {name: getattr(plan, name) for name in figures}
    found["caveats"] = sorted(plan.caveats)
    return found | {"layers": sorted(layers), "default": plan.default and plain(plan.default)}


def measured(shipped: Selector, name: str) -> Device:
    """The device of that name in the shipped measurements: by its name it would be this machine, if alike."""
    with shipped.database.read() as connection:
        return next(one for one in records.devices(connection) if name in one.key)


def plans(model: str, device: Device) -> Golden:
    """Every plan of PLANS, and the frontier of LIMITS, of a published model; on a processor in float32."""
    subject = published(model, **({} if device.kind == "cuda" else {"dtype": "float32"}))
    found = {name: _tried(partial(_plan, subject, device, given)) for name, given in PLANS.items()}
    points = _tried(lambda: [one.to_dict() for one in selector.pareto(subject, device, memory_limits=LIMITS)])
    return {**found, "frontier": points}


def _plan(subject: Model, device: Device, given: dict[str, Any]) -> Golden:
    return plain(selector.plan(subject, device, **given))


def device_times(model: str) -> Golden:
    """What each part of a published model gets on GPU by the device's time: name, words and milliseconds."""
    found: Golden = {}
    for batch in BATCHES:
        layers = [
            Layer(path=part.name, problem=part.problem, calls=part.count, covers=())
            for part in published(model).workload(batch).parts
        ]
        for replayed in (False, True):
            times = DeviceTimes(layers, GPU, None, replayed=replayed)
            found[f"{batch} samples{', replayed' if replayed else ''}"] = {
                "advice": list(times.advice),
                "parts": [[one.path, times.faster(one.problem), times.ms(one.problem)] for one in layers],
            }
    return found


def small_models() -> Iterator[tuple[str, nn.Module, torch.Tensor]]:
    """Models that train on a processor in milliseconds, each with an example."""
    torch.manual_seed(0)
    yield "layers", nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)), torch.randn(32, 64)
    encoder = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    yield "encoder", nn.Sequential(encoder, nn.LayerNorm(64)), torch.randn(4, 32, 64)
    yield "lstm", Last(nn.LSTM(64, 64)), torch.randn(20, 8, 64)
    yield "gru", Last(nn.GRU(64, 64)), torch.randn(20, 8, 64)


class Last(nn.Module):
    """The outputs of a recurrent layer, without its states."""

    def __init__(self, recurrent: nn.Module) -> None:
        super().__init__()
        self.recurrent = recurrent

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.recurrent(x)[0]
        return found


def reports() -> Golden:
    """What `optimize` does with small models on this processor where all that is tried pays."""
    found: Golden = {}
    for objective in ("throughput", "memory"):
        for name, model, example in small_models():
            with mock.patch.object(trials, "time_pairs", _all_pays):
                report = selector.optimize(model, example, objective=objective, arrangements=("ours",))
            found[f"{name}, {objective}"] = {
                "replaced": [[one.path, one.implementation, one.why] for one in report.replaced],
                "left_alone": [[one.path, one.why] for one in report.left_alone],
                "notes": [one for one in report.notes if "No database at" not in one],  # which has a path
            }
    return found


def _all_pays(before: Callable[[int], Any], after: Callable[[int], Any], *_: Any, **__: Any) -> Outcome:
    """As `time_pairs`, by a clock that gives what is tried half of the time."""
    before(1), after(1)
    return outcome([(2.0, 1.0)] * 7)


def _tried(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except SelectorError as error:
        return {"error": type(error).__name__}


def cases(shipped: Selector) -> Iterator[tuple[str, Callable[[], Golden]]]:
    """The name of each part of the golden answers, and what gives it."""
    devices = {name: measured(shipped, name) for name in DEVICES}
    for model in families():
        for name, device in devices.items():
            yield f"plan {model} {name}", partial(plans, model, device)
        yield f"device_times {model}", partial(device_times, model)
    yield "optimize", reports


@contextmanager
def nothing_measured() -> Iterator[None]:
    """The environment of a user whose own database is not there."""
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, {"XDG_DATA_HOME": folder}):
        os.environ.pop("SELECTOR_DATABASE_URL", None)
        yield
