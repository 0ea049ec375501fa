"""scripts/audit: what it says of findings, and that it never takes silence for good news."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GOOD = {"name": "numpy", "version": "2.0", "vulns": []}
BAD = {"name": "left", "version": "1.0", "vulns": [{"id": "CVE-1", "fix_versions": ["1.1", "2.0"]}]}
UNFIXED = {"name": "right", "version": "1.0", "vulns": [{"id": "CVE-2", "fix_versions": []}]}
SKIPPED = {"name": "torch", "skip_reason": "not found there"}


@pytest.mark.parametrize(
    ("packages", "status", "words"),
    [
        ([GOOD], 0, "0 findings in 1 packages"),
        ([GOOD, BAD], 1, "left 1.0: CVE-1, fixed in 1.1, 2.0"),
        ([UNFIXED], 1, "right 1.0: CVE-2, fixed in no version yet"),
        ([GOOD, SKIPPED], 3, "torch: not looked up: not found there"),
        ([GOOD, SKIPPED], 3, "0 findings in 1 packages"),
        ([BAD, SKIPPED], 1, "1 findings in 1 packages\n1 packages were not looked up"),
    ],
)
def test_what_is_said_of_a_report(
    tmp_path: Path, packages: list[dict[str, object]], status: int, words: str
) -> None:
    report = tmp_path / "report.json"
    report.write_text(json.dumps({"dependencies": packages}))
    command = [sys.executable, "scripts/audit_report.py", report]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == status
    assert words in run.stdout


def audit(folder: Path, *, pip_audit: str = "", python: str = sys.executable) -> tuple[int, str, str]:
    """Status and output of the script in a folder of its own, with a stand-in for pip-audit if given."""
    for name in ("scripts/audit", "scripts/audit_report.py", "constraints.txt"):
        copy = folder / name
        copy.parent.mkdir(exist_ok=True)
        copy.write_text((ROOT / name).read_text())
    if pip_audit:
        program = folder / ".audit/bin/pip-audit"
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/usr/bin/env bash\n{pip_audit}\n")
        program.chmod(0o755)
    environment = {**os.environ, "PYTHON": python}
    run = subprocess.run(
        ["bash", folder / "scripts/audit"], env=environment, capture_output=True, text=True, check=False
    )
    return run.returncode, run.stdout, run.stderr


@pytest.mark.parametrize(
    "fault",
    [
        {"pip_audit": "echo ConnectionError: no route to host >&2; exit 1"},
        {"python": "false"},  # no virtual environment, and so no pip-audit
    ],
    ids=["no network", "no environment"],
)
def test_silence_is_no_good_news(tmp_path: Path, fault: dict[str, str]) -> None:
    status, said, errors = audit(tmp_path, **fault)
    assert status == 2
    assert said == ""
    assert "NOT DONE" in errors
    assert "says nothing about the dependencies" in errors


@pytest.mark.parametrize(("packages", "expected"), [([GOOD], 0), ([GOOD, BAD], 1)])
def test_what_is_asked_is_what_is_pinned(
    tmp_path: Path, packages: list[dict[str, object]], expected: int
) -> None:
    report = json.dumps({"dependencies": packages})
    # pip-audit fails when it finds something; its last argument is the file that it writes
    stand_in = f'echo "$@" >asked; echo \'{report}\' >"${{@: -1}}"; exit {expected}'
    status, said, _ = audit(tmp_path, pip_audit=stand_in)
    assert status == expected
    assert f"{expected} findings in {len(packages)} packages" in said
    assert "--requirement constraints.txt --no-deps --disable-pip" in (tmp_path / "asked").read_text()
