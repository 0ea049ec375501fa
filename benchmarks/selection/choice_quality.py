"""Quality of choices: python -m benchmarks.selection.choice_quality [--database URL] [--device NAME].

From a checkout. Judges what the chooser answers for every operator in the database on problems and devices
that neither its evidence nor its cost model has, and holds the figures against what was asked. Nothing is
measured: this reads measurements.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from benchmarks.common.lines import text_of
from benchmarks.common.result import RESULTS, write_result
from benchmarks.selection.visits import compared
from kernel_selector.db import Database
from kernel_selector.kernels.contract import Record
from selector.selection.shipped import unpacked
from selector.training.evaluation import MODEL
from selector.training.judgements import BASELINES, Judgements, judge_all
from selector.training.report import write_report
from selector.training.train import SHAPES, Judgement
from selector.training.verdicts import GROUPS, grouped
from selector.training.verdicts import figures as figures_of

# asked and aimed at, over the held-out shapes of all operators
GMEAN = (1.015, 1.005)
LIMITS = {"gmean": GMEAN, "p95": (1.10, 1.03), "p99": (1.30, 1.10)}
WITHIN_5_PERCENT = (0.95, 0.99)
UNJUDGED = (0.005, 0.0)  # choices that failed there, or were not measured there
EXCEEDED = (0.005, 0.0)
ERRORS = {"time": (0.06, 0.03), "memory": (0.02, 0.01)}  # medians over training steps
COVERED = (0.85, 0.95)
# sweeps of the same problems: minutes apart on one machine, and half a day apart on hosts that others use
VISITS = (
    ("visits_nvidia-h200_first", "visits_nvidia-h200_second"),
    ("steady_survey_nvidia-h200_further", "steady_survey_nvidia-h200_further_again"),
)


def main() -> None:
    """Judge, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--database", help="URL or path (default: the measurements that ship)")
    parser.add_argument("--device", help="only measurements of this kind of device count, such as h200")
    parser.add_argument("--operators", nargs="+", default=(), metavar="NAME", help="(default: all)")
    parser.add_argument("--report", type=Path, help="folder for the written report with its plots")
    parser.add_argument("--jobs", type=int, default=1, help="processes, each with an operator at a time")
    options = parser.parse_args()
    with Database.open(options.database or unpacked()) as database:
        overview = judge_all(
            database,
            options.device,
            operators=options.operators,
            jobs=options.jobs,
            implementations=False,
            done=_say,
        )
    if options.report:
        print(write_report(options.report, overview))
    print(overview.table())
    payload = {"of_device": options.device, "figures": figures(overview), **overview.to_dict()}
    payload["across_visits"] = across_visits()
    print(json.dumps(payload["figures"], indent=2))
    print(write_result("choice_quality", payload))


def _say(one: Judgement) -> None:
    """Print the figures of an operator."""
    for words, verdicts in one.verdicts.items():
        print(one.evaluation.operator, words, figures_of(verdicts), flush=True)


def across_visits() -> dict[str, Any]:
    """Losses of choosing by one visit to a machine, judged by another: the noise of verdicts, by operator."""
    found: dict[str, Any] = {}
    for names in VISITS:
        sweeps = [text_of(RESULTS / f"{name}.jsonl.xz").splitlines() for name in names]
        for operator, one in compared(*[list(map(Record.from_json, each)) for each in sweeps]).items():
            found.setdefault(operator, []).append({"problems": one["problems"], **one["choice_by_the_other"]})
    return found


def figures(overview: Judgements) -> dict[str, Any]:
    """Each figure with what was asked and aimed at: of the choices on held-out shapes that have a time."""
    model = figures_of(overview.verdicts[SHAPES])
    found: dict[str, Any] = {name: _figure(model[name], *limits) for name, limits in LIMITS.items()}
    # operators whose choices are hard have more problems: here each operator counts alike
    each = grouped(overview.verdicts[SHAPES], GROUPS["operator"])
    means = [one["gmean"] for one in each.values() if "gmean" in one]
    found["gmean_of_operators"] = _figure(geometric_mean(means), *GMEAN)
    found["within_5_percent"] = _figure(model["within_5_percent"], *WITHIN_5_PERCENT)
    found["unjudged"] = _figure(model["unjudged"], *UNJUDGED)
    tried = [one.under_limits for one in overview.evaluations if one.under_limits]
    choices = sum(one.choices for one in tried)
    exceeded = sum(one.exceeded * one.choices for one in tried) / choices
    found["memory_limit_exceeded"] = _figure(exceeded, *EXCEEDED) | {"choices": choices}
    records = sum(one.records for one in overview.evaluations)
    for name, limits in ERRORS.items():
        errors = {one.operator: getattr(one, f"{name}_error") for one in overview.evaluations}
        found[f"{name}_error"] = _figure(overview.step_errors[name], *limits) | {
            "worst_operator": round(max(errors.values()), 4),
            "by_operator": errors,
        }
    covered = sum(one.coverage.time * one.records for one in overview.evaluations) / records
    found["time_covered"] = {"measured": round(covered, 4), "asked": COVERED}
    found["no_better_than_a_baseline"] = {
        one.evaluation.operator: worse for one in overview.judgements if (worse := _worse(one.shapes))
    }
    return found


def _worse(shapes: Any) -> list[str]:
    """The baselines that a model does not beat."""
    return [name for name in BASELINES if shapes and shapes[MODEL].gmean >= shapes[name].gmean]


def _figure(value: float, asked: float, aim: float) -> dict[str, float]:
    return {"measured": round(value, 4), "asked": asked, "aim": aim}


if __name__ == "__main__":
    main()
