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
        ([GOOD, SKIPPED], 1, "torch: not looked up: not found there"),
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


def test_without_a_network_nothing_is_said(tmp_path: Path) -> None:
    """A folder of its own, as pip leaves it where nothing can be had."""
    for name in ("scripts/audit", "scripts/audit_report.py", "constraints.txt"):
        copy = tmp_path / name
        copy.parent.mkdir(exist_ok=True)
        copy.write_text((ROOT / name).read_text())
    environment = {**os.environ, "PYTHON": sys.executable, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": ""}
    command = ["bash", tmp_path / "scripts/audit"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 2, run.stdout + run.stderr
    assert "NOT DONE" in run.stderr
    assert run.stdout == ""
