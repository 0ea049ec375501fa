"""Checks of the installation: each returns a finding, and none raises."""

from __future__ import annotations

import os
import sys
from collections.abc import Container, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import SelectorError, UnknownOperator
from selector.errors import ModelVersionMismatch
from selector.profiling.profile import opened
from selector.selection.devices import default_torch_device, resolve

OLDEST_PYTHON = (3, 11)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One check: `status` is "ok", "note" or "broken"; `advice` says what to do, "" when nothing."""

    name: str
    status: str
    detail: str
    advice: str = ""

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


def examine(database: str | Path | None = None) -> list[Finding]:
    """Every check, in the order in which problems should be mended."""
    checks = (_python, _torch, _device, lambda: _database(database), _packages)
    return [finding for check in checks for finding in check()]


def _python() -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < OLDEST_PYTHON:
        yield Finding(name="python", status="broken", detail=version, advice="Install Python 3.11 or later.")
    else:
        yield Finding(name="python", status="ok", detail=f"{version} at {sys.executable}")


def _torch() -> Iterator[Finding]:
    try:
        import torch
    except ImportError as error:
        yield Finding(
            name="torch", status="broken", detail=f"cannot be imported: {error}", advice="pip install torch"
        )
        return
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU only"
    yield Finding(name="torch", status="ok", detail=f"{torch.__version__} ({build})")
    if torch.version.cuda is None and Path("/proc/driver/nvidia/version").exists():
        yield Finding(
            name="torch",
            status="note",
            detail="an NVIDIA driver is installed, but this torch is built without CUDA",
            advice="Install a CUDA build of torch to measure on the GPU.",
        )


def _device() -> Iterator[Finding]:
    try:
        name = default_torch_device()
        device = resolve(name).device
    except Exception as error:  # a broken driver raises anything; this command is there to report it
        yield Finding(
            name="device",
            status="broken",
            detail=f"cannot be used: {error}",
            advice="Check the driver (nvidia-smi), or hide the GPU: CUDA_VISIBLE_DEVICES= selector doctor",
        )
        return
    yield Finding(name="device", status="ok", detail=f"{name}: {device.name}")


def _database(database: str | Path | None) -> Iterator[Finding]:
    from kernel_selector.db import DatabaseMissing

    try:
        with opened(database) as store:
            yield from _contents(store)
            with store.write():
                pass
    except DatabaseMissing as error:
        yield Finding(name="database", status="note", detail=str(error), advice="Run: selector quickstart")
    except SelectorError as error:
        yield Finding(name="database", status="broken", detail=str(error))


def _contents(store: Any) -> Iterator[Finding]:
    from kernel_selector.db import records
    from selector.cost_model.stored_models import model_listing
    from selector.workloads.imported_operator import imported_operators

    with store.read() as connection:
        total = records.total(connection)
    yield Finding(name="database", status="ok", detail=f"{store.location}, {total} records")
    try:
        with store.read() as connection:
            listing, imported = model_listing(connection), imported_operators(connection)
    except ModelVersionMismatch as error:
        yield Finding(name="model", status="broken", detail=str(error))
        return
    if not listing:
        yield Finding(
            name="model", status="note", detail="none is trained yet", advice="Run: selector quickstart"
        )
    latest = {model["operator"]: model for model in sorted(listing, key=lambda model: model["created_at"])}
    for operator, model in latest.items():
        when = f"{model['created_at']:%Y-%m-%d %H:%M} UTC"
        detail = f"{operator} {model['version']}, trained {when}"
        yield _usable(store, operator, imported) or Finding(name="model", status="ok", detail=detail)


def _usable(store: Any, operator: str, imported: Container[str]) -> Finding | None:
    """What is wrong with the latest model, loaded as `choose` loads it; None when nothing is."""
    from selector.cost_model.predictor import Predictor
    from selector.cost_model.stored_models import latest_model

    try:
        with store.read() as connection:
            stored = latest_model(connection, operator)
        if stored is not None:
            Predictor(stored, None if operator in imported else registry.operator(operator))
    except ModelVersionMismatch as error:
        return Finding(name="model", status="broken", detail=str(error))
    except UnknownOperator as error:
        return Finding(name="model", status="note", detail=str(error))
    return None


def _packages() -> Iterator[Finding]:
    installed = {name: _version(name) for name in ("kernels", "transformers")}
    found = [f"{name} {version}" for name, version in installed.items() if version]
    here = Path.cwd() / "kernels" / "contract" / "__init__.py"
    on_path = {Path(entry or os.curdir).resolve() for entry in sys.path}
    if here.exists() and found:
        yield Finding(
            name="packages",
            status="broken" if Path.cwd().resolve() in on_path else "note",
            detail=f"{', '.join(found)} installed, and ./kernels of this checkout hides the package kernels "
            "of Hugging Face from Python that is started here",
            advice="Start your programs from another folder, or with python -P.",
        )
    else:
        detail = (
            f"beside {', '.join(found)}" if found else "neither transformers nor Hugging Face's kernels here"
        )
        yield Finding(name="packages", status="ok", detail=f"no clash: {detail}")


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
