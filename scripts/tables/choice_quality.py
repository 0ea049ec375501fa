"""The table of what choices lose on problems that the cost model has not seen, by what was held out."""

from __future__ import annotations

from pathlib import Path

from .parts import LOSSES, Result, losses, results, run, share, table

HEAD = ("held out", "device", *LOSSES, "with those")


def overview(folder: Path) -> str:
    """For each split and device a line of all operators together, then what was not judged and why."""
    return "".join(_one(result) for result in results(folder, "choice_quality"))


def _one(result: Result) -> str:
    rows = [
        # the share within 5 % where the unjudged count as outside
        (words, device, *losses(figures), share(figures.get("within_5_percent_with_unjudged")))
        for words, found in result["splits"].items()
        for device, figures in found["device"].items()
    ]
    left_out = "".join(f"- not judged, {words}: {reason}\n" for words, reason in result["not_judged"].items())
    return f"{run(result)}; {len(result['operators'])} operators:\n{table(HEAD, rows)}{left_out}\n"
