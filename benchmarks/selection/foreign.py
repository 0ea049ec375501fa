"""An operator that others measured, imported and learned: python -m benchmarks.selection.foreign [--rows N].

Makes up measurements of a batched matrix product on one GPU: twelve implementations with tiles, split sums,
alignment that some of them need, waves over the multiprocessors, dtypes, layouts and 2 % of noise. They are
written to a file, imported, and a cost model is trained. `cost_model` is what the chooser answers about
held-out problems, as `selector evaluate` judges it. Among what was timed there, and on the same problems,
the cost model's choices stand beside those of two models of log time, both of boosted trees with words and
implementation as categories: a plain one over the raw columns by scikit-learn's defaults, and a strong one
of 600 trees that also sees sizes in log2, products of them, and how often two divides each.

`--file` takes measurements of one operator instead, and `--operator` those that ship of one of ours, under
another name and without what is known of it. `--import-only` stops after the import. Prints the figures
and writes them to `benchmarks/results/foreign_N.json`, N being the rows or the operator.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor

from benchmarks.common.result import write_result
from kernel_selector.db import Database
from selector.exchange.import_file import import_file
from selector.selection.shipped import unpacked
from selector.training.evaluation import MODEL
from selector.training.fit import HeldOut, folds, held_out_shapes
from selector.training.imported_dataset import ImportedDataset
from selector.training.robustness import by_model, contests
from selector.training.train import load_dataset, load_measured, train
from selector.training.verdicts import Quality, quality
from selector.workloads.imported_operator import imported_operators

MULTIPROCESSORS, COPY_BYTES_PER_S = 132, 3.5e12
RATES = {"float32": 6e13, "float16": 5e14, "bfloat16": 5e14}


@dataclass(frozen=True)
class Kernel:
    """A made-up implementation: tile of the output, depth of a step, parts of the sum, and its habits."""

    name: str
    rows: int
    columns: int
    depth: int
    parts: int
    launch_us: float
    efficiency: float
    alignment: int

    def time_ms(self, values: dict[str, Any], draw: random.Random) -> float | None:
        """Milliseconds of a product, or None where it does not work."""
        m, n, k, batch = (values[name] for name in ("m", "n", "k", "batch"))
        rate = RATES[values["dtype"]] * self.efficiency
        if values["dtype"] != "float32" and (n % self.alignment or k % self.alignment):
            if self.alignment >= 16:
                return None
            rate /= 2.5
        tile = self.rows * self.columns
        slots = MULTIPROCESSORS * (2 if tile <= 8192 else 1)
        tiles = math.ceil(m / self.rows) * math.ceil(n / self.columns) * batch * self.parts
        steps = math.ceil(k / self.parts / self.depth) * self.depth
        tile_s = 2 * tile * steps / (rate * tile / (tile + 4096) / slots)
        size = 4 if values["dtype"] == "float32" else 2
        copied = size * batch * (m * k + k * n + m * n * (2 * self.parts - 1)) / COPY_BYTES_PER_S
        copied *= 1.3 if values["layout"] == "tn" and self.depth < 64 else 1.0
        busy_s = max(math.ceil(tiles / slots) * tile_s, copied) + (4e-6 if self.parts > 1 else 0.0)
        return (self.launch_us * 1e-6 + busy_s) * 1e3 * draw.lognormvariate(0, 0.02)


def kernels(draw: random.Random) -> list[Kernel]:
    """Twelve implementations."""
    return [
        Kernel(
            name=f"kernel_{number}",
            rows=draw.choice((16, 32, 64, 128, 256)),
            columns=draw.choice((32, 64, 128, 256)),
            depth=draw.choice((16, 32, 64)),
            parts=draw.choice((1, 1, 1, 4, 8)),
            launch_us=draw.uniform(3, 12),
            efficiency=draw.uniform(0.45, 0.9),
            alignment=draw.choice((1, 1, 8, 16)),
        )
        for number in range(12)
    ]


def lines(rows: int) -> Iterator[str]:
    """Made-up measurements as JSON lines, `rows` of them, problem by problem."""
    draw = random.Random(0)
    made = kernels(draw)
    count = 0
    while count < rows:
        values = {"m": size(draw, 1, 8192), "n": size(draw, 32, 16384), "k": size(draw, 32, 8192)}
        values["batch"] = 1 if math.prod(values.values()) > 2e10 else size(draw, 1, 64)
        values |= {"dtype": draw.choice(tuple(RATES)), "layout": draw.choice(("nn", "nt", "tn"))}
        for kernel in made[: rows - count]:
            count += 1
            time_ms = kernel.time_ms(values, draw)
            outcome = {"status": "unsupported", "reason": "not aligned"}
            if time_ms is not None:
                workspace = 4 * values["batch"] * values["m"] * values["n"] * (kernel.parts - 1)
                outcome = {"milliseconds": time_ms, "bytes": workspace}
            line = {"operator": "made_up_gemm", "device": "H200", "hyperparameters": values}
            yield json.dumps({**line, "implementation": kernel.name, **outcome}) + "\n"


def size(draw: random.Random, low: int, high: int) -> int:
    """Log-uniform; every other one a power of two."""
    exponent = draw.uniform(math.log2(low), math.log2(high))
    return 2 ** round(exponent) if draw.random() < 0.5 else round(2**exponent)


def timed(work: Callable[[], Any]) -> tuple[dict[str, float], Any]:
    """Wall-clock and processor seconds, and the result."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = work()
    seconds = {
        "wall_s": round(time.perf_counter() - wall, 1),
        "processor_s": round(time.process_time() - cpu, 1),
    }
    return seconds, result


def lines_of(name: str) -> Iterator[str]:
    """The shipped measurements of an operator of ours as JSON lines of an operator of others.

    A hyperparameter that a problem does not name has its value for none: false, 0 or "none".
    """
    with Database.open(unpacked()) as shipped:
        dataset, _ = load_measured(name, shipped)
    asked = [dataset.question(row) for row in range(len(dataset.rows))]
    kinds = {key: type(value) for problem, _ in asked for key, value in problem.as_dict.items()}
    nothing = {key: "none" if kind is str else kind() for key, kind in kinds.items()}
    for (problem, device), implementation, time_ms in zip(
        asked, dataset.implementation.tolist(), dataset.time_ms.tolist(), strict=True
    ):
        line = {"operator": f"others_{name}", "device": device.key, "implementation": implementation}
        values = {**nothing, **problem.as_dict}
        yield json.dumps({**line, "hyperparameters": values, "milliseconds": time_ms}) + "\n"


def by_trees(
    dataset: ImportedDataset, held_out: HeldOut, columns: list[np.ndarray], **options: Any
) -> np.ndarray:
    """Log times by boosted trees over the raw columns and these, of each fold from the rows outside of it."""
    measured, places = dataset.columns, dataset.places
    parts, words = [], []
    for span in measured.operator.hyperparameters:
        codes = {word: code for code, word in enumerate(span.words)}
        values = [codes.get(item[span.name]) if codes else item[span.name] for item in measured.problems]
        parts.append(np.array(values, float)[measured.problem[places]])
        words.append(bool(codes))
    rows = np.column_stack([*parts, *columns, measured.device[places], measured.implementation[places]])
    categories = [*words, *(False for _ in columns), True, True]
    predicted = np.full(len(rows), np.nan)
    for test, _ in folds(dataset, held_out):
        trees = HistGradientBoostingRegressor(categorical_features=categories, random_state=0, **options)
        trees.fit(rows[~test], np.log(dataset.time_ms[~test]))
        predicted[test] = trees.predict(rows[test])
    return predicted


def strong_columns(dataset: ImportedDataset) -> list[np.ndarray]:
    """Sizes in log2, products of two, of three and of all of them, and how often two divides each."""
    sizes = list(dataset.spec.logs(dataset.columns.problems).values())
    counts = sorted({1, 2, 3, len(sizes)} & set(range(1, len(sizes) + 1)))
    products = [sum(some) for count in counts for some in combinations(sizes, count)]
    aligned = [
        np.array([alignment(item[name] or 0) for item in dataset.columns.problems])
        for name in dataset.spec.sizes
    ]
    return [column[dataset.problem] for column in (*products, *aligned)]


def alignment(value: int) -> float:
    """The largest power of two that divides a value, 256 at most, 0 of 0."""
    return float(min(value & -value, 256))


def judged(dataset: ImportedDataset, held_out: HeldOut, predicted: np.ndarray) -> dict[str, float]:
    """The quality of choosing by these predictions, over contests of several implementations."""
    choose, times = by_model(dataset, predicted, {}), dataset.time_ms
    asked = [rows for rows in contests(dataset, held_out.tested) if len(rows) > 1]
    found = [float(times[choose(rows)] / times[rows].min()) for rows in asked]
    return rounded(quality(found))


def rounded(found: Quality) -> dict[str, float]:
    """The figures by name."""
    return {name: round(value, 5) for name, value in vars(found).items()}


def learned(database: Database) -> dict[str, Any]:
    """Train, and compare with the plain model on the problems that the cost model was judged on."""
    with database.read() as connection:
        (operator,) = imported_operators(connection).values()
    seconds, report = timed(lambda: train(operator.name, database, lambda *step: print(*step, flush=True)))
    dataset, _ = load_dataset(operator.name, database)
    assert isinstance(dataset, ImportedDataset)
    held_out = held_out_shapes(dataset, memory=False)
    plain_seconds, plain = timed(lambda: by_trees(dataset, held_out, []))
    strong_seconds, strong = timed(
        lambda: by_trees(dataset, held_out, strong_columns(dataset), max_iter=600, early_stopping=False)
    )
    timed_there = {
        "cost_model": judged(dataset, held_out, held_out.time_ms),
        "plain_model": judged(dataset, held_out, plain),
        "strong_model": judged(dataset, held_out, strong),
    }
    lost = {name: found["gmean"] - 1 for name, found in timed_there.items()}
    return {
        "operator": operator.name,
        "implementations": len(operator.implementations),
        "learned_from_rows": len(dataset.rows),
        "train": seconds,
        "cost_model": rounded(report.evaluation.comparisons[0].selectors[MODEL]),
        "plain_model_fit": plain_seconds,
        "strong_model_fit": strong_seconds,
        "among_what_was_timed": timed_there,
        "slowdown_minus_1_over_plain": round(lost["cost_model"] / lost["plain_model"], 3),
        "slowdown_minus_1_over_strong": round(lost["cost_model"] / lost["strong_model"], 3),
    }


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000, help="how many (default 100,000)")
    parser.add_argument("--file", type=Path, help="measurements of one operator, instead of made-up ones")
    parser.add_argument("--operator", help="one of ours whose shipped measurements stand in for made-up ones")
    parser.add_argument("--import-only", action="store_true", help="do not train")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = options.file or Path(folder) / "rows.jsonl"
        if options.file is None:
            with file.open("w") as opened:
                opened.writelines(lines_of(options.operator) if options.operator else lines(options.rows))
        path = Path(folder) / "measurements.sqlite"
        with Database.open(path, create=True) as database:
            seconds, report = timed(lambda: import_file(file, database))
            result = {"rows": report.added, "import": seconds, "file_bytes": file.stat().st_size}
            result["database_bytes"] = path.stat().st_size
            if not options.import_only:
                result |= learned(database)
        result["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps(result, indent=2))
    name = options.file.stem if options.file else f"foreign_{options.operator or report.added + report.known}"
    print(write_result(name, result, torch_device="cpu"))


if __name__ == "__main__":
    main()
