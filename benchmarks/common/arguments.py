"""Arguments of programs that write result files, and the folder that follows from them."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from benchmarks.common.result import RESULTS


def add_result_arguments(
    parser: argparse.ArgumentParser,
    *,
    smoke: str,
    subject: str = "measured",
    verb: str = "write",
    seed: str = "",
) -> None:
    """`--commit`, `--results` and `--smoke`, added to a program's arguments with their help.

    `smoke` says what is measured then, `subject` what is done with the commit, `verb` what with results, and
    `seed` of what a `--seed` is. Without `subject` there is no `--commit`, without `seed` no `--seed`.
    """
    add = parser.add_argument
    if subject:
        add("--commit", help=f"what is {subject}, where there is no repository to ask")
    add("--results", type=Path, metavar="DIR", help=f"where to {verb} (default: {RESULTS.name}/)")
    if seed:
        add("--seed", type=int, default=0, help=f"of {seed} (default: 0)")
    add("--smoke", action="store_true", help=f"{smoke}, into a temporary folder")


def result_folder(options: argparse.Namespace, name: str) -> Path:
    """Folder of the results: the one that is named, or, with `--smoke`, a new temporary one of this name."""
    if options.results is not None:
        named: Path = options.results
        return named
    return Path(tempfile.mkdtemp(prefix=f"{name}-")) if options.smoke else RESULTS
