"""Throughput against memory, as planned from a database: tables, pictures and seconds.

    python -m benchmarks.models.plans --database measurements.sqlite --device h200 --models bert-large nmt

Writes `plans_<device>.json` and a picture of each model's frontier beside it. Nothing is run on the device.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import selector
from benchmarks.common.figures import rounded
from benchmarks.common.result import RESULTS, write_result
from selector.planning.drawing import draw
from selector.workloads.published_models import families

LIMITS = ("8GiB", "11GiB", "16GiB", "24GiB", "40GiB", "80GiB", "139GiB")
SHOWN = ("24GiB",)  # limits of which the whole plan is kept


def main(arguments: Sequence[str] | None = None) -> Path:
    """Plan every model within every limit, print what comes out, and write it."""
    options = _parser().parse_args(arguments)
    device = selector.Selector(options.database).device(options.device)
    models = {name: _frontier(name, options) for name in options.models}
    payload = {"device_planned_for": device.to_dict(), "limits": options.limits, "models": models}
    return write_result(f"plans_{device.key}", payload, torch_device="cpu", folder=options.results)


def _frontier(name: str, options: argparse.Namespace) -> dict[str, Any]:
    asked: dict[str, Any] = {"device": options.device, "database": options.database}
    points = selector.pareto(name, memory_limits=options.limits, **asked)
    plans: dict[str, Any] = {}
    seconds = []
    for limit in options.limits:
        start = time.process_time()
        try:
            plan = selector.plan(name, memory_limit=limit, **asked)
        except selector.NothingFits as error:
            print(f"{name}: {error}")
            continue
        seconds.append(rounded(time.process_time() - start))
        if limit in SHOWN:
            plans[limit] = plan.to_dict()
        print(f"{plan.headline} ({plan.speed_up or 0:.2f}x)")
    picture = options.results / f"plans_{name}.svg"
    picture.write_text(draw(points, f"{name} on {options.device}"))
    return {"points": [point.to_dict() for point in points], "plans": plans, "cpu_seconds_per_plan": seconds}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add = parser.add_argument
    add("--device", default="h200", help="what is planned for (default: h200)")
    add("--database", help="URL or path (default: the user's)")
    add("--models", nargs="+", choices=sorted(families()), default=["bert-large"], metavar="MODEL")
    add("--limits", nargs="+", default=list(LIMITS), help=f"default: {' '.join(LIMITS)}")
    add(
        "--results",
        type=Path,
        metavar="DIR",
        default=RESULTS,
        help=f"where to write (default: {RESULTS.name}/)",
    )
    return parser


if __name__ == "__main__":
    main()
