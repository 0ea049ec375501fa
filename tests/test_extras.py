"""The library without its extras: it chooses, plans and optimizes, and what needs an extra names it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from kernel_selector.service.extras import LIBRARIES

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
NEEDED_BY_TYPER = {"pydantic", "pydantic_core"}
BLOCKED = (*sorted({*LIBRARIES} - NEEDED_BY_TYPER), "psycopg", "ray", "submitit", "pyarrow", "transformers")
WITHOUT = f"import sys\nfor name in {BLOCKED}: sys.modules[name] = None\n"
COMMAND = WITHOUT + "from kernel_selector.service.cli import main\nsys.exit(main(sys.argv[1:]))"


def names(requirements: list[str]) -> set[str]:
    """Modules of distributions, by the names of both."""
    found = (re.split(r"[\[>=<;~]", one)[0].strip() for one in requirements)
    return {name.replace("-", "_") for name in found} - {"kernel_selector"}


def python(code: str, *arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own, with an empty data folder."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SELECTOR_")}
    environment = {**inherited, "XDG_DATA_HOME": str(home)}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False
    )


def test_no_library_of_an_extra_is_a_dependency() -> None:
    extra = names(EXTRAS["service"] + EXTRAS["fleet"] + EXTRAS["postgresql"] + EXTRAS["parquet"])
    assert names(PROJECT["dependencies"]) & extra == set()
    assert names(EXTRAS["service"]) == set(LIBRARIES)


def test_every_dependency_says_why_it_is_there() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    requirements = [*PROJECT["dependencies"], *(one for extra in EXTRAS.values() for one in extra)]
    assert [one for one in requirements if not re.search(rf'"{re.escape(one)}", +# \w', text)] == []


COMMANDS = [
    "--help",
    "operators --json",
    "choose lstm hidden=1024 batch=16 seq=50 dtype=bfloat16 --device h200",
    "plan lstm-language-model --device h200 --memory 16GiB",
    "devices",
    "database upgrade",
    "database upgrade --database {home}/measured.sqlite",
    "jobs list --database {home}/measured.sqlite",
    "token list --database {home}/measured.sqlite",
    "audit --database {home}/measured.sqlite",
    "measurements --help",
]


def test_commands_work_without_extras(tmp_path: Path) -> None:
    """Each in a fork of one process: most of their time went into imports."""
    code = f"""{WITHOUT}
import os, pathlib, selector, torch
from kernel_selector import db
from kernel_selector.service.cli import application, main
for number, command in enumerate(sys.argv[1:]):
    child = os.fork()
    if child == 0:
        os.dup2(os.open(f"{tmp_path}/{{number}}", os.O_WRONLY | os.O_CREAT), 1)
        sys.exit(main(command.split()))
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status or not pathlib.Path(f"{tmp_path}/{{number}}").read_text().strip():
        sys.exit(f"status {{status}} of {{command}}")
"""
    done = python(code, *(one.format(home=tmp_path) for one in COMMANDS), home=tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_library_works_without_extras(tmp_path: Path) -> None:
    code = f"""{WITHOUT}
import torch, selector
from selector.nn import LSTM
layer = selector.choose("lstm", hidden=8, batch=2, seq=3).build()
LSTM(8, 8)(torch.randn(3, 2, 8))
print(selector.plan("lstm-language-model", device="h200", memory_limit="16GiB").explain())
print(selector.optimize(torch.nn.Linear(8, 8).eval(), torch.randn(2, 8), arrangements=("ours",)))
"""
    done = python(code, home=tmp_path)
    assert done.returncode == 0, done.stderr


def test_what_commands_stand_on_needs_no_extra(tmp_path: Path) -> None:
    code = f"""{WITHOUT}
import importlib, pkgutil
from kernel_selector import service
for package in ("cli", "fleet", "ingest"):
    path = [f"{{service.__path__[0]}}/{{package}}"]
    for module in pkgutil.iter_modules(path, f"kernel_selector.service.{{package}}."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
            print(module.name)
"""
    done = python(code, home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) > 30


@pytest.mark.parametrize("command", ["serve", "extender", "config"])
def test_a_command_of_the_service_names_the_extra(command: str, tmp_path: Path) -> None:
    done = python(COMMAND, command, home=tmp_path)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "fastapi" in line
    assert line.endswith("pip install 'kernel-selector[service]'")


@pytest.mark.parametrize("module", ["app", "extender", "settings"])
def test_importing_the_service_names_the_extra(module: str, tmp_path: Path) -> None:
    done = python(f"{WITHOUT}import kernel_selector.service.{module}", home=tmp_path)
    last = done.stderr.splitlines()[-1]
    assert last.startswith("kernel_selector.service.extras.MissingExtra: ")
    assert last.endswith("pip install 'kernel-selector[service]'")


def test_one_missing_library_is_enough(tmp_path: Path) -> None:
    code = "import sys; sys.modules['uvloop'] = None; import kernel_selector.service.app"
    last = python(code, home=tmp_path).stderr.splitlines()[-1]
    assert "The service needs uvloop, which is not installed" in last


def test_a_database_in_postgresql_names_the_extra(tmp_path: Path) -> None:
    words = ["choose", "hidden=8", "batch=2", "--database", "postgresql://user@localhost/name"]
    done = python(COMMAND, *words, home=tmp_path)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.endswith("pip install 'kernel-selector[postgresql]'")


def test_a_fleet_names_the_extra(tmp_path: Path) -> None:
    words = ["fleet", "profile", "layer_norm", "--count", "1", "--address", "local"]
    done = python(COMMAND, *words, "--database", str(tmp_path / "measured.sqlite"), home=tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith("pip install 'kernel-selector[fleet]'.")
