"""The documents: everything registered is in them, their examples parse, their links lead somewhere."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from kernel_selector.kernels import registry
from kernel_selector.service.cli.application import app
from kernel_selector.service.routes import ROUTERS

ROOT = Path(__file__).parents[1]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
README = (ROOT / "README.md").read_text()
FENCE = re.compile(r"^( *)```(\w+)([^\n]*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]*))?\)")
HOSTS = [
    r"pypi\.",
    r"files\.python" + "hosted",
    r"download\.py" + "torch",
    r"registry\.npm" + "js",
    "deb" + r"\.debian",
]
MACHINE = [
    rf"/(?<![\w.]/){folder}/"  # the literal first: ten times as fast
    for folder in ("work", "root", r"home/(?!user\b)\w+", r"opt/(wheels|pypi)")
]


def commands(command: Any = None, name: str = "selector") -> Iterator[tuple[str, Any]]:
    """Every command with its full name."""
    command = command or typer.main.get_command(app)
    yield name, command
    for word, member in getattr(command, "commands", {}).items():
        yield from commands(member, f"{name} {word}")


def examples(language: str) -> list[Any]:
    """Every fenced block of a language, without its indent."""
    return [
        pytest.param(re.sub(rf"^{found[1]}", "", found[4], flags=re.MULTILINE), id=f"{path.name}-{number}")
        for path in DOCUMENTS
        for number, found in enumerate(FENCE.finditer(path.read_text()))
        if found[2] == language
    ]


def test_the_generated_parts_of_the_readme_are_up_to_date() -> None:
    command = [sys.executable, "scripts/render-readme", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("operator", list(registry.operators()))
def test_every_operator_and_implementation_is_documented(operator: str) -> None:
    names = [operator, *registry.implementations(operator)]
    assert [name for name in names if f"`{name}`" not in README] == []


@pytest.mark.parametrize(("name", "command"), list(commands()))
def test_every_command_is_documented(name: str, command: Any) -> None:
    assert command.help
    assert f"`{name}" in README


def test_every_route_is_documented() -> None:
    texts = README + (ROOT / "docs/rest.md").read_text()
    paths = [route.path for router in ROUTERS for route in router.routes]  # type: ignore[attr-defined]
    assert [path for path in paths if path not in texts] == []


@pytest.mark.parametrize("source", examples("python"))
def test_python_examples_parse(source: str) -> None:
    ast.parse(source)


@pytest.mark.parametrize("source", examples("bash"))
def test_bash_examples_parse_and_name_real_commands(source: str) -> None:
    assert subprocess.run(["bash", "-n"], input=source, text=True, check=False).returncode == 0
    known = dict(commands())
    for line in source.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words and words[0].removeprefix(".venv/bin/") == "selector":
            name = "selector " + " ".join(
                words[1:3] if words[1] in ("database", "fleet", "jobs", "token") else words[1:2]
            )
            assert name in known, line
            options = {option for one in known[name].params for option in one.opts}
            assert {word for word in words if word.startswith("--")} <= options, line
        elif words and "/" in words[0] and not words[0].startswith("."):
            assert (ROOT / words[0]).exists(), line


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_local_links_lead_somewhere(document: Path) -> None:
    for target, anchor in LINK.findall(re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL)):
        path = document.parent / target if target else document
        assert path.exists(), f"{document.name}: {target}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in headings}


def test_no_file_names_a_registry_host_or_a_path_of_one_machine() -> None:
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    files = [ROOT / name for name in listing.stdout.split("\0") if name]
    hits = []
    for path in files:
        if path.is_file() and path != Path(__file__):
            text = path.read_text(errors="replace")
            for pattern in HOSTS + MACHINE:
                hits += [f"{path.relative_to(ROOT)}: {found[0]}" for found in re.finditer(pattern, text)]
    assert hits == []
