"""CONTRIBUTING's "Adding an implementation", followed to the letter in a copy of the checkout.

One new file, and no other edit: it is gated, measured, stored, learned and chosen.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("kernels", "db", "alembic", "selector", "service", "kernel_selector")
SECTION = (ROOT / "CONTRIBUTING.md").read_text().split("## Adding an implementation")[1].split("\n## ")[0]
BLOCK = re.compile(r"^   ```(\w+)([^\n]*)\n(.*?)^   ```$", re.DOTALL | re.MULTILINE)
COUNT = "14"  # problems to profile, where the text says 60

# as `joined` would be chosen if it were as much faster as these records say
FASTER = """
import dataclasses, sys
from kernel_selector.db import Database, records
import selector

def slower(timing):
    scaled = {name: 1000 * getattr(timing, name) for name in ("p20_ms", "p50_ms", "p80_ms")} if timing else {}
    return timing and dataclasses.replace(timing, **scaled, raw_ms=tuple(1000 * one for one in timing.raw_ms))

with Database.open() as store, store.read() as connection:
    found = [one for one in records.find(connection, operator="lstm") if one.status.value == "ok"]
changed = [one if one.implementation == "joined" else dataclasses.replace(
    one, forward=slower(one.forward), forward_backward=slower(one.forward_backward)) for one in found]
with Database.open(sys.argv[1], create=True) as store:
    with store.write() as connection:
        records.add(connection, records=changed)
problem = next(one.problem for one in found if one.implementation == "joined")
choice = selector.choose("lstm", database=sys.argv[1], device="cpu", **problem.as_dict)
print(choice.implementation, choice.source, type(choice.build()).__name__)
"""


def blocks() -> dict[str, list[tuple[str, str]]]:
    """(what follows the language, text without indent) of the section's blocks, by language."""
    found: dict[str, list[tuple[str, str]]] = {}
    for language, rest, text in BLOCK.findall(SECTION):
        found.setdefault(language, []).append((rest.strip(), re.sub("^   ", "", text, flags=re.MULTILINE)))
    return found


class Checkout:
    """A copy of the folders that matter, with a .venv whose programs run this interpreter."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for folder in FOLDERS:
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / folder, root / folder, symlinks=True, ignore=ignored)
        programs = root / ".venv/bin"
        programs.mkdir(parents=True)
        for name, module in (("python", ""), ("selector", " -m kernel_selector.service.cli")):
            (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable}{module} "$@"\n')
            (programs / name).chmod(0o755)

    def run(self, command: str, *arguments: str) -> str:
        """The output of a bash command that must succeed, run at the root of the copy."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        environment |= {
            "SELECTOR_DATABASE_URL": str(self.root / "measurements.sqlite"),
            "NO_COLOR": "1",
            "OMP_NUM_THREADS": "1",
        }
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command, "bash", *arguments],
            cwd=self.root,
            env=environment,
            capture_output=True,
            text=True,
            timeout=800,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    def records(self) -> list[dict[str, object]]:
        """What step 3 wrote."""
        return [json.loads(line) for line in (self.root / "records.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Checkout, list[str]]:
    """A copy in which the steps were followed, and what its commands printed."""
    checkout = Checkout(tmp_path_factory.mktemp("checkout"))
    ((place, source),) = blocks()["python"]
    file = checkout.root / place.removeprefix("sample=")
    assert not file.exists()
    file.write_text(source)
    commands = [text.replace("--count 60", f"--count {COUNT}") for _, text in blocks()["bash"]]
    return checkout, [checkout.run(line) for text in commands for line in text.splitlines()]


def test_there_are_at_most_six_steps() -> None:
    assert len(re.findall(r"^\d+\. ", SECTION, re.MULTILINE)) <= 6


def test_the_new_file_is_gated_and_measured(followed: tuple[Checkout, list[str]]) -> None:
    records = [one for one in followed[0].records() if one["implementation"] == "joined"]
    assert len(records) == 4  # two sizes, two modes
    assert {one["status"] for one in records} == {"ok"}
    assert all(one["gate"]["passed"] for one in records)  # type: ignore[index]


def test_it_is_stored_and_learned(followed: tuple[Checkout, list[str]]) -> None:
    checkout, _ = followed
    code = (
        "from kernel_selector.db import Database, models, records\n"
        "with Database.open() as store, store.read() as connection:\n"
        "    found = list(records.find(connection, operator='lstm'))\n"
        "    model = models.latest(connection, operator='lstm')\n"
        "print(sum(one.implementation == 'joined' for one in found))\n"
        "print('joined' in model.manifest['implementations'])"
    )
    assert checkout.run('.venv/bin/python -c "$1"', code).split() == [COUNT, "True"]


def test_it_can_be_chosen_by_name(followed: tuple[Checkout, list[str]]) -> None:
    by_name, by_evidence = followed[1][-2:]
    assert re.search(r"Choice +joined", by_name)
    assert "joined" in by_evidence


def test_it_is_chosen_where_it_is_the_fastest(followed: tuple[Checkout, list[str]]) -> None:
    printed = followed[0].run(
        '.venv/bin/python -c "$1" "$2"', FASTER, str(followed[0].root / "faster.sqlite")
    )
    assert printed.split() == ["joined", "exact", "LayeredLSTM"]


def test_a_wrong_file_fails_the_gate_and_is_never_chosen(followed: tuple[Checkout, list[str]]) -> None:
    checkout, _ = followed
    source = (checkout.root / "kernels/operators/lstm/joined.py").read_text()
    wrong = checkout.root / "kernels/operators/lstm/wrong.py"
    wrong.write_text(source.replace("return o.sigmoid() * c.tanh()", "return 1.01 * o.sigmoid() * c.tanh()"))
    checkout.run(".venv/bin/selector profile lstm hidden=16 batch=2 seq=5 mode=inference --device cpu")
    question = "lstm hidden=16 batch=2 seq=5 mode=inference --device cpu --json"
    choice = json.loads(checkout.run(f".venv/bin/selector choose {question}"))
    wrong.unlink()
    (candidate,) = [one for one in choice["candidates"] if one["name"] == "wrong"]
    assert candidate["excluded"]
    assert choice["implementation"] != "wrong"
