"""The documents: everything registered is in them, examples run or parse, links lead somewhere."""

from __future__ import annotations

import ast
import os
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
DOCS = ROOT / "docs"
MOST_LINES = 150  # of README.md
FENCE = re.compile(r"^( *)```(\w+)([^\n]*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]*))?\)")
# comparisons of steps as short as in the tests of them: ten seconds each go into nothing that is shown
BRIEF = """from selector.models.rewriting import arrangement_search, trials
trials.LEAST_SECONDS = arrangement_search.LEAST_SECONDS = 0.2
arrangement_search.MOST_SECONDS = 0.5
"""
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


@pytest.mark.parametrize("operator", list(registry.operators()))
def test_every_operator_and_implementation_is_documented(operator: str) -> None:
    names, text = [operator, *registry.implementations(operator)], (DOCS / "operators.md").read_text()
    assert [name for name in names if f"`{name}`" not in text] == []


@pytest.mark.parametrize(("name", "command"), list(commands()))
def test_every_command_is_documented(name: str, command: Any) -> None:
    assert command.help
    assert f"`{name}" in (DOCS / "commands.md").read_text()


def test_every_route_is_documented() -> None:
    text = (DOCS / "rest.md").read_text()
    paths = [route.path for router in ROUTERS for route in router.routes]  # type: ignore[attr-defined]
    assert [path for path in paths if path not in text] == []


def test_the_readme_is_short_and_leads_to_every_page() -> None:
    assert len(README.splitlines()) <= MOST_LINES
    assert [page.name for page in DOCS.glob("*.md") if f"](docs/{page.name})" not in README] == []


def test_continuous_integration_runs_the_test_command_of_the_readme() -> None:
    (command,) = re.findall(r"^exec (scripts/\S+)", (ROOT / ".ci/run").read_text(), re.MULTILINE)
    assert f"```bash\n{command}\n```" in README


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_no_document_but_the_changes_has_figures_of_a_plan(document: Path) -> None:
    if document.name != "CHANGELOG.md":
        found = re.findall(r"\b(?:asked|aims?|goals?):? \d\S*", document.read_text())
        assert found == []


@pytest.mark.parametrize(
    "source", [one.values[0] for one in examples("python") if one.id.startswith("README")]
)
def test_python_examples_of_the_readme_run(source: str, tmp_path: Path) -> None:
    quick = BRIEF if "optimize" in source else ""
    run_outside([sys.executable, "-c", quick + source], tmp_path)


def test_commands_of_the_readme_run(tmp_path: Path) -> None:
    sources = [one.values[0] for one in examples("bash") if one.id.startswith("README")]
    lines = [line for source in sources for line in source.splitlines()]
    ours = [shlex.split(line)[1:] for line in lines if line.startswith("selector ")]
    assert ours
    for words in ours:
        run_outside([sys.executable, "-m", "kernel_selector.service.cli", *words], tmp_path)
    others = [line for line in lines if not line.startswith("selector ")]
    assert {line.split()[0] for line in others} == {"pip", "scripts/quickstart", "scripts/test"}


def run_outside(command: list[str], folder: Path) -> None:
    """Run a command away from the checkout, with a data folder of its own."""
    site = folder / "site"
    site.mkdir(exist_ok=True)
    for package in ("selector", "kernel_selector"):
        if not (site / package).exists():
            (site / package).symlink_to(ROOT / package)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SELECTOR_")}
    environment = {**inherited, "PYTHONPATH": str(site), "XDG_DATA_HOME": str(folder)}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    assert done.stdout.strip()


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
