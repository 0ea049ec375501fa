"""Agreement of two sweeps of the same problems.

    python -m benchmarks.selection.visits FIRST SECOND [--commit HASH]

Both are records of `python -m kernels.measure --problems plan.jsonl --policy steady --output FILE`, on one
machine, one after the other. For each operator: by how much a candidate's time differs between the two, in
logarithms; what of that is left when the mean of the problem's candidates is taken off, in which a host that
others use, too, is faster or slower for all of them; and what choosing the fastest of one sweep loses by the
times of the other: so much of a choice's loss is noise. Writes `visits_<device>.json`, and both sweeps beside
it. Needs no GPU.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.lines import keep, text_of
from benchmarks.common.result import RESULTS, laid_out
from kernel_selector.kernels.contract import Problem, Record, Status
from selector.training.verdicts import quality

SHARES = (50, 80, 95)  # per cent of the candidates
Times = dict[str, float]  # ms, by implementation


def main(arguments: Sequence[str] | None = None) -> None:
    """Read both sweeps, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("sweeps", type=Path, nargs=2, metavar="FILE")
    parser.add_argument("--commit", default="unknown", help="of the code that measured")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR")
    given = parser.parse_args(arguments)
    texts = [text_of(file) for file in given.sweeps]
    sweeps = [[Record.from_json(line) for line in text.splitlines()] for text in texts]
    first = sweeps[0][0]
    name = f"visits_{first.device.key}"
    kept = [given.results / f"{name}_{place}.jsonl.xz" for place in ("first", "second")]
    for file, text in zip(kept, texts, strict=True):
        keep(text, file)
    result = {
        "name": name,
        "measured_at": [
            min(one.measured_at for one in each).isoformat(timespec="seconds") for each in sweeps
        ],
        "commit": given.commit,
        "device": first.device.to_dict(),
        "environment": first.environment.to_dict(),
        "policy": first.policy,
        "operators": compared(*sweeps),
        "records": [file.name for file in kept],
    }
    path = given.results / f"{name}.json"
    path.write_text(laid_out(result) + "\n")
    print(json.dumps(result["operators"], indent=1))
    print(path)


def compared(first: Sequence[Record], second: Sequence[Record]) -> dict[str, Any]:
    """The figures of each operator, of candidates that both sweeps have good times of."""
    one, other = times_of(first), times_of(second)
    pairs: dict[str, list[tuple[Times, Times]]] = defaultdict(list)
    for problem in one.keys() & other.keys():
        names = sorted(one[problem].keys() & other[problem].keys())
        if len(names) > 1:
            each = [{name: times[problem][name] for name in names} for times in (one, other)]
            pairs[problem.operator].append((each[0], each[1]))
    return {operator: _figures(found) for operator, found in sorted(pairs.items())}


def _figures(pairs: Sequence[tuple[Times, Times]]) -> dict[str, Any]:
    differences = [np.log([one[name] / other[name] for name in one]) for one, other in pairs]
    within = [each - each.mean() for each in differences]
    both_ways = [way for one, other in pairs for way in ((one, other), (other, one))]
    losses = [
        judge[min(chosen, key=lambda name: chosen[name])] / min(judge.values()) for chosen, judge in both_ways
    ]
    found = quality(losses)
    return {
        "problems": len(pairs),
        "candidates": sum(map(len, differences)),
        "difference": _shares(np.concatenate(differences)),
        "difference_within_problems": _shares(np.concatenate(within)),
        "choice_by_the_other": {
            "gmean": round(found.gmean, 4),
            "p95": round(found.p95, 4),
            "p99": round(found.p99, 4),
            "within_5_percent": round(found.within_5_percent, 4),
        },
    }


def _shares(values: Any) -> dict[str, float]:
    return {f"p{share}": round(float(np.percentile(np.abs(values), share)), 4) for share in SHARES}


def times_of(records: Sequence[Record]) -> Mapping[Problem, Times]:
    """Milliseconds of all that was measured well, by problem and implementation."""
    found: dict[Problem, Times] = defaultdict(dict)
    for record in records:
        if record.status is Status.OK and record.total is not None:
            found[record.problem][record.implementation] = record.total.undisturbed_ms
    return found


def comparable(times: Mapping[Problem, Times]) -> dict[Problem, Times]:
    """The times of problems with several implementations, among which there is a choice to make."""
    return {problem: known for problem, known in times.items() if len(known) > 1}


if __name__ == "__main__":
    main()
