"""The wheel: what is in it, and that it works in a virtual environment outside the checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import selector

ROOT = Path(__file__).parents[1]
HOME_IN_WHEEL = {
    "kernels": "kernel_selector/kernels",
    "db": "kernel_selector/db",
    "service": "kernel_selector/service",
    "alembic": "kernel_selector/migrations",
    "selector": "selector",
}


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """The standard output of a command that must succeed, run without our checkout on any path."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "SELECTOR_", "XDG_", "VIRTUAL_ENV"))
    }
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """(sdist, wheel built from that sdist, wheel built from the checkout)."""
    folder = tmp_path_factory.mktemp("dist")
    build = (sys.executable, "-m", "build", "--no-isolation", ROOT, "--outdir")
    run(*build, folder / "both", cwd=folder)
    run(*build, folder / "direct", "--wheel", cwd=folder)
    (sdist,) = (folder / "both").glob("*.tar.gz")
    (wheel,) = (folder / "both").glob("*.whl")
    (direct,) = (folder / "direct").glob("*.whl")
    return sdist, wheel, direct


@pytest.fixture(scope="module")
def outside(archives: tuple[Path, Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A fresh virtual environment with the wheel; the libraries come from the one that runs the tests."""
    folder = tmp_path_factory.mktemp("outside")
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv", cwd=folder)
    pip = (sys.executable, "-m", "pip", "--python", folder / "venv/bin/python", "install", "--quiet")
    run(*pip, "--no-deps", "--no-index", archives[2], cwd=folder)
    (site,) = (folder / "venv/lib").glob("python*/site-packages")
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_wheel_holds_every_file_of_our_folders(archives: tuple[Path, Path, Path]) -> None:
    expected = {
        f"{home}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder, home in HOME_IN_WHEEL.items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {"selector/py.typed", "kernel_selector/migrations/script.py.mako"} <= expected
    ours = {name for name in names(archives[2]) if ".dist-info/" not in name}
    assert ours == expected | {"kernel_selector/__init__.py", "kernel_selector/py.typed"}


def test_the_wheel_takes_no_name_of_others(archives: tuple[Path, Path, Path]) -> None:
    tops = {name.split("/")[0] for name in names(archives[2])}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"kernel_selector", "selector"}


def test_the_wheel_carries_its_licence(archives: tuple[Path, Path, Path]) -> None:
    assert any(name.endswith("/licenses/LICENSE") for name in names(archives[2]))


def test_the_sdist_builds_the_same_wheel(archives: tuple[Path, Path, Path]) -> None:
    sdist, from_sdist, direct = archives
    assert names(from_sdist) == names(direct)
    with zipfile.ZipFile(from_sdist) as first, zipfile.ZipFile(direct) as second:
        assert [name for name in first.namelist() if first.read(name) != second.read(name)] == []
    with tarfile.open(sdist) as archive:
        members = archive.getnames()
    assert not [name for name in members if "/tests/" in name or name.endswith(".pyc")]


def test_the_command_answers(outside: Path) -> None:
    selector = outside / "venv/bin/selector"
    assert "quickstart" in run(selector, "--help", cwd=outside)
    operators = json.loads(run(selector, "operators", "--json", cwd=outside))
    assert "torch_lstm" in json.dumps(operators)


def test_the_modules_come_from_the_wheel(outside: Path) -> None:
    code = "import selector, kernel_selector.kernels.registry as k; print(selector.__file__, k.__file__)"
    files = run(outside / "venv/bin/python", "-c", code, cwd=outside).split()
    assert all(Path(file).is_relative_to(outside / "venv") for file in files)


def test_the_database_is_made_in_the_user_s_data_directory(outside: Path) -> None:
    code = (
        "from kernel_selector.db import Database, records\n"
        "with_tables = Database.open(create=True)\n"
        "with with_tables.read() as connection: print(records.total(connection))\n"
        "with_tables.close()"
    )
    python, data = outside / "venv/bin/python", outside / "data"
    assert run(python, "-c", code, cwd=outside, XDG_DATA_HOME=str(data)).split() == ["0"]
    assert (data / "kernel-selector/measurements.sqlite").stat().st_size > 0


def test_names_that_are_listed_are_those_that_users_call() -> None:
    listed = {name for name in dir(selector) if not name.startswith("__")}
    assert listed == {*selector.__all__, "layers", "nn"}
    assert all(hasattr(selector, name) for name in dir(selector))
