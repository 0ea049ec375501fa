"""An operator that others measured, imported and learned: python -m benchmarks.selection.foreign [--rows N].

Makes up measurements of a batched matrix product on one GPU: twelve implementations with tiles, split sums,
alignment that some of them need, waves over the multiprocessors, dtypes, layouts and 2 % of noise. They are
written to a file, imported, and a cost model is trained. What the chooser answers about held-out problems,
as `selector evaluate` judges it, stands beside the choices of a plain model among what was timed there:
boosted trees of log time over the raw columns, scikit-learn's defaults, words and implementation as
categories. `--import-only` stops after the import. `--file` takes a file of measurements instead. Prints
the figures and writes them to `benchmarks/results/foreign_N.json`.
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
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor

from benchmarks.common.result import write_result
from kernel_selector.db import Database
from selector.exchange.import_file import import_file
from selector.training.evaluation import MODEL
from selector.training.fit import HeldOut, folds, held_out_shapes
from selector.training.imported_dataset import ImportedDataset
from selector.training.robustness import by_model, contests
from selector.training.train import load_dataset, train
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


def plain_predictions(dataset: ImportedDataset, held_out: HeldOut) -> np.ndarray:
    """Times by boosted trees over the raw columns, for each fold from the rows outside of it."""
    columns, places = dataset.columns, dataset.places
    parts, categories = [], []
    for span in columns.operator.hyperparameters:
        codes = {word: code for code, word in enumerate(span.words)}
        values = [codes[item[span.name]] if codes else item[span.name] for item in columns.problems]
        parts.append(np.array(values, float)[columns.problem[places]])
        categories.append(bool(codes))
    rows = np.column_stack([*parts, columns.device[places], columns.implementation[places]])
    predicted = np.full(len(rows), np.nan)
    for test, _ in folds(dataset, held_out):
        plain = HistGradientBoostingRegressor(categorical_features=[*categories, True, True], random_state=0)
        plain.fit(rows[~test], np.log(dataset.time_ms[~test]))
        predicted[test] = plain.predict(rows[test])
    return predicted


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
    plain_seconds, plain = timed(lambda: plain_predictions(dataset, held_out))
    ours = rounded(report.evaluation.comparisons[0].selectors[MODEL])
    theirs = judged(dataset, held_out, plain)
    return {
        "operator": operator.name,
        "implementations": len(operator.implementations),
        "learned_from_rows": len(dataset.rows),
        "train": seconds,
        "cost_model": ours,
        "plain_model": theirs,
        "plain_model_fit": plain_seconds,
        "slowdown_minus_1_over_plain": round((ours["gmean"] - 1) / (theirs["gmean"] - 1), 3),
    }


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000, help="how many (default 100,000)")
    parser.add_argument("--file", type=Path, help="measurements of one operator, instead of made-up ones")
    parser.add_argument("--import-only", action="store_true", help="do not train")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = options.file or Path(folder) / "rows.jsonl"
        if options.file is None:
            with file.open("w") as opened:
                opened.writelines(lines(options.rows))
        path = Path(folder) / "measurements.sqlite"
        with Database.open(path, create=True) as database:
            seconds, report = timed(lambda: import_file(file, database))
            result = {"rows": report.added, "import": seconds, "file_bytes": file.stat().st_size}
            result["database_bytes"] = path.stat().st_size
            if not options.import_only:
                result |= learned(database)
        result["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps(result, indent=2))
    name = options.file.stem if options.file else f"foreign_{report.added + report.known}"
    print(write_result(name, result, torch_device="cpu"))


if __name__ == "__main__":
    main()
