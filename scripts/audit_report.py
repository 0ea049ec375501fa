"""Print what pip-audit found: python scripts/audit_report.py FILE.

Status 0: nothing is known of any package, 1: something is, 3: of some packages nothing could be looked up.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

CLEAN, FOUND, UNKNOWN = 0, 1, 3


def findings(report: dict[str, Any]) -> list[str]:
    """A line for each known vulnerability."""
    return [
        f"{package['name']} {package['version']}: {one['id']}, fixed in "
        f"{', '.join(one['fix_versions']) or 'no version yet'}"
        for package in report["dependencies"]
        for one in package.get("vulns", ())
    ]


def unknown(report: dict[str, Any]) -> list[str]:
    """A line for each package about which nothing is known."""
    return [
        f"{package['name']}: not looked up: {package['skip_reason']}"
        for package in report["dependencies"]
        if "skip_reason" in package
    ]


def main(path: str) -> int:
    """Print the lines and a summary."""
    report = json.loads(Path(path).read_text())
    found, skipped = findings(report), unknown(report)
    looked_up = len(report["dependencies"]) - len(skipped)
    print(*found, *skipped, f"{len(found)} findings in {looked_up} packages", sep="\n")
    if skipped:
        print(f"{len(skipped)} packages were not looked up, which says nothing about them")
    return FOUND if found else UNKNOWN if skipped else CLEAN


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
