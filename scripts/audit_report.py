"""Print what pip-audit found: python scripts/audit_report.py FILE. Status 1: there is something."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def lines(report: dict[str, Any]) -> list[str]:
    """A line for each known vulnerability, and for each package about which nothing is known."""
    found = []
    for package in report["dependencies"]:
        if "skip_reason" in package:
            found.append(f"{package['name']}: not looked up: {package['skip_reason']}")
        for one in package.get("vulns", ()):
            fixed = ", ".join(one["fix_versions"]) or "no version yet"
            found.append(f"{package['name']} {package['version']}: {one['id']}, fixed in {fixed}")
    return found


def main(path: str) -> int:
    """Print the lines and a summary; 1 when there are any."""
    report = json.loads(Path(path).read_text())
    found = lines(report)
    print(*found, f"{len(found)} findings in {len(report['dependencies'])} packages", sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
