"""Make the measurements that come with the package, of records that were measured here.

    R=benchmarks/results H=nvidia-h200
    python -m benchmarks.ship $R/steady_survey_${H}_{refreshed,doubtful}.jsonl.xz \\
        $R/steady_{${H}_layers,$H,${H}_hugging_face,${H}_feed_forward}.jsonl.xz \\
        $R/steady_survey_{$H,${H}_uncertain}.jsonl.xz $R/linear_$H.json \\
        $R/sweep_${H}_models.jsonl.xz $R/{recurrent,sublayers}_$H.json \\
        $R/steady_survey_${H}_attention.jsonl.xz $R/sweep_amd-epyc.jsonl.xz --later $R/later_$H.jsonl.xz

The processor's records are of `selector profile --operator all --device cpu --count 30 --database FILE`, then
`selector export` and `xz`.

A problem that several files have on a device is taken from the first of them: name the one that was measured
best first. Mixed, figures of one problem that were taken in different ways would be compared. Files behind
--later are of implementations that came afterwards or were changed: they add what a problem has no record of,
where it was measured under the same policy. The records go into a new database, cost models are trained on
them, and all of it is packed into `selector/shipped/`. What ran out of memory is left out: in sweeps many
processes share a device.
"""

from __future__ import annotations

import argparse
import lzma
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.to_database import read_records
from kernel_selector.db import Database, records
from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Record, Status
from selector import NoMeasurements
from selector.learning import train
from selector.shipped import PACKED


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the files, train, pack and say what became of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+", help="as python -m benchmarks.to_database takes them")
    parser.add_argument(
        "--later", type=Path, nargs="+", default=[], help="of implementations that came later"
    )
    parser.add_argument("--output", type=Path, default=PACKED, help="default: what the package ships")
    options = parser.parse_args(arguments)
    found = list(_first(options.files))
    found += _added(found, [record for file in options.later for record in _of(file)])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "measurements.sqlite"
        with Database.open(path, create=True) as database:
            with database.write() as connection:
                count = len(options.files) + len(options.later)
                print(f"{records.add(connection, found)} records of {count} files")
            for operator in registry.operators():
                print(_trained(operator, database))
        _tidy(path)
        options.output.write_bytes(lzma.compress(path.read_bytes(), preset=9 | lzma.PRESET_EXTREME))
    print(f"{options.output}: {options.output.stat().st_size:,} bytes")


def _first(files: Sequence[Path]) -> Iterator[Record]:
    """The records of the files, but for problems that an earlier file has good ones of."""
    known: set[tuple[str, str]] = set()
    for file in files:
        of_file = _of(file)
        yield from (record for record in of_file if _where(record) not in known)
        known |= {_where(record) for record in of_file if record.status is Status.OK}


def _added(known: Sequence[Record], later: Sequence[Record]) -> list[Record]:
    """Those of implementations that a problem has no record of, as they are, but of others by that policy."""
    policies = {(_where(record), record.policy) for record in known}
    had = {(_where(record), _version(record)) for record in known}
    return [
        record
        for record in later
        if (_where(record), record.policy) in policies and (_where(record), _version(record)) not in had
    ]


def _version(record: Record) -> tuple[str, str]:
    return record.implementation, record.implementation_version


def _where(record: Record) -> tuple[str, str]:
    return record.problem.key, record.device.key


def _of(file: Path) -> list[Record]:
    return [record for record in read_records(file) if record.status is not Status.OUT_OF_MEMORY]


def _trained(operator: str, database: Database) -> str:
    try:
        report = train(operator, database)
    except NoMeasurements as error:
        return f"{operator}: no cost model. {error}"
    return f"{operator}: {report.records} records of {report.problems} problems, {report.seconds:.0f} s"


def _tidy(path: Path) -> None:
    """One file without gaps, which opens where nothing may be written."""
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")
    connection.execute("VACUUM")
    connection.close()


if __name__ == "__main__":
    main()
