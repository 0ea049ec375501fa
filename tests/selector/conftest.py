"""A made-up machine and databases of its measurements, so that choosing is tested without a clock."""

from __future__ import annotations

import fcntl
import os
import random
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kernel_selector.db import Database, records
from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Problem, Record
from selector import Selector
from selector.selection import answer, devices, knowledge, shipped
from selector.selection import selector as selector_module
from selector.selection.snapshot import Body
from selector.training import train as learning
from selector.training.judgements import Judgements, judge_all
from tests.selector import replay

Opened = Callable[..., Selector]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine is the made-up one."""
    monkeypatch.setattr(devices, "_probed", lambda _: replay.HERE)
    monkeypatch.setattr(devices, "_identified", lambda _: replay.HERE)
    monkeypatch.setattr(devices, "default_torch_device", lambda: "cpu")
    monkeypatch.setattr(devices, "local_names", lambda: ("cpu",))
    monkeypatch.setattr(answer, "current_environment", lambda _torch_device: replay.SOFTWARE)


@pytest.fixture
def selector_of(request: pytest.FixtureRequest, sqlite_database: Database) -> Opened:
    """Makes a Selector over an otherwise empty database with the given records."""
    request.getfixturevalue("here")

    def make(found: Iterable[Record] = (), *, frozen: bool = False) -> Selector:
        with sqlite_database.write() as connection:
            records.add(connection, records=found)
        return Selector(sqlite_database, frozen=frozen)

    return make


@pytest.fixture(scope="session")
def trained_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with measurements of 60 problems and a cost model trained on them."""
    path = tmp_path_factory.mktemp("trained") / "measurements.sqlite"
    shutil.copyfile(_once("trained.sqlite", tmp_path_factory, _train), path)
    return path


@pytest.fixture(scope="session")
def shipped_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The database that ships, unpacked, under its name in a cache folder."""
    folder = tmp_path_factory.mktemp("shipped") / "cache"
    shutil.copytree(_once("shipped", tmp_path_factory, _unpack), folder)
    return next(folder.rglob("*.sqlite"))


@pytest.fixture(scope="session")
def shipped_body(shipped_file: Path) -> Iterator[Body]:
    """What ships, with all of it that a test has read: a plan reads for three seconds."""
    with Database.open(shipped_file) as database:
        yield Body(database, shipped=True)


@pytest.fixture
def shipped_cache(
    shipped_file: Path, shipped_body: Body, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """A user's cache folder in which what ships was unpacked before; and what ships is on."""
    monkeypatch.setenv("SELECTOR_SHIPPED", "on")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "cache" / shipped_file.parent.name
    folder.mkdir(parents=True)
    (folder / shipped_file.name).symlink_to(shipped_file)
    monkeypatch.setattr(knowledge, "Body", lambda _opened, *, shipped: shipped_body)  # noqa: ARG005
    forget_what_ships()
    selector_module._shared.cache_clear()
    yield
    forget_what_ships()
    selector_module._shared.cache_clear()


def forget_what_ships() -> None:
    """Let this process open anew what ships, which may be elsewhere by now."""
    for cached in (knowledge._opened, shipped._opened, shipped.problem_keys):
        cached.cache_clear()


def _once(name: str, factory: pytest.TempPathFactory, make: Callable[[Path], None]) -> Path:
    """What `make` puts at a path, made by the first of all workers that needs it."""
    base = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # which they share
    with open(base / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (base / name).exists():
            part = factory.mktemp("made") / name
            make(part)
            part.rename(base / name)
    return base / name


def _unpack(path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(path))
        shipped.unpacked()


def _train(path: Path) -> None:
    which = list(replay.problems())
    random.Random(0).shuffle(which)
    with Database.open(path, create=True) as database:
        with database.write() as connection:
            records.add(connection, records=replay.sweep(which[:60]))
        learning.train("lstm", database)


@pytest.fixture(scope="session")
def judged(trained_file: Path) -> Judgements:
    """All that is found out about the choices of that model."""
    with Database.open(trained_file) as database:
        return judge_all(database)


@pytest.fixture
def trained(request: pytest.FixtureRequest, trained_file: Path) -> Iterator[Selector]:
    """A Selector over the trained database."""
    request.getfixturevalue("here")
    selector = Selector(trained_file)
    yield selector
    selector.close()


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    """The equations as implementations named `stand_in`, of operators that have no second one on a CPU."""
    import torch

    def build(problem: Problem) -> torch.nn.Module:
        module = registry.reference(problem).to(getattr(torch, problem["dtype"]))
        return module.train(problem["mode"] == "training")

    others = ("relu", "gelu", "silu", "layer_norm", "rms_norm", "dropout_add_norm", "linear")
    for operator in others:
        own = registry.implementation(operator, registry.operator(operator).default)
        other = replace(own, name="stand_in", default=False, build=build)
        monkeypatch.setitem(registry.implementations(operator), "stand_in", other)


@pytest.fixture(scope="session")
def autocast_lstm() -> None:
    """A processor on which torch's own nn.LSTM runs under autocast: oneDNN has none in bfloat16 for AVX2."""
    try:
        with torch.autocast("cpu", torch.bfloat16):
            torch.nn.LSTM(4, 4)(torch.zeros(1, 1, 4))
    except RuntimeError as error:
        pytest.skip(f"torch's own nn.LSTM cannot run under autocast on this processor: {error}")
