"""Make the measurements that come with the package: those that come with it, and what was measured since.

    python -m scripts.release.ship [FILE ...] [--again FILE ...] [--later FILE ...]
    python -m scripts.release.ship --from-nothing FILE ... --output measurements.db.xz

FILEs are what `scripts.release.sweep_result` kept, or of whatever else `scripts.release.to_database` takes.
The first form extends `selector/selection/shipped/measurements.db.xz`, or the database that --base names, and
keeps each of its records: it counts as the first file. The sweeps that it was made of left the repository,
which travels to the machines that measure. The second form makes a database of the files alone.

A problem that several files have on a device in one regime is taken from the first of them: name the one that
was measured best first. Mixed, figures of one problem that were taken in different ways would be compared.
How a candidate failed is kept in any case. Files behind --later are of implementations that came afterwards
or were changed: they add what a problem has no record of, where it was measured under the same policy. What
was measured several times by one clock (SAME_CLOCK), in whichever files, has the samples of all visits; files
behind --again have nothing else to add. A visit's samples are added once: a file of visits that the database
has is refused. Hosts of a GPU that differ in their number of cores count as one, without that number, since
one thread launches; its rates are of the probe that launched fastest. To take less space, samples are rounded
to DIGITS digits, and those of a forward pass are left out where whole steps were timed; percentiles of what
is left out stay those of the visits before. The records go into a new database, cost models are trained on
them, and all of it is packed. A cost model stays as it is where its operator, and what it learned from
beside, have the records that they had: the same would be learned again; after a change of the learner use
--train-all. What ran out of memory is left out: in sweeps many processes share a device.

For each file it says how many of its records are in the database, as samples or by themselves. A sweep of
which nearly all are leaves `benchmarks/results/` in the same commit; "records" in its .json, which stays,
becomes the path of the database.
"""

from __future__ import annotations

import argparse
import lzma
import math
import re
import sqlite3
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from itertools import chain, repeat
from multiprocessing import get_context
from pathlib import Path

from sqlalchemy.engine import Connection

from kernel_selector.db import Database, models, records
from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device, Environment, Record, Status
from kernel_selector.kernels.contract.record import LAUNCHED, TIMINGS
from kernel_selector.kernels.measure.timing import timing
from scripts.release.to_database import read_records
from selector import NoMeasurements
from selector.selection.records import pool
from selector.selection.shipped import PACKED
from selector.training.related_operators import RELATED
from selector.training.train import train

SAME_CLOCK = {"steady_survey": "steady"}  # policies that differ in how many samples they take
CORES = re.compile(r" x\d+$")
PASS = {  # of which percentiles are enough where whole training steps were timed: steps are compared
    "forward": "forward_backward",
    "graph_forward": "graph_forward_backward",
}
DIGITS = 4  # of a sample: what the fifth says is far below what one run differs from the next


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the files, train, pack and say what became of it."""
    options = _options(arguments)
    base = [] if options.from_nothing else packed(options.base)
    measured, again, later = (
        {file: _of(file) for file in files} for files in (options.files, options.again, options.later)
    )
    for file, visits in (measured | again | later).items():
        if _is_in(base, visits):
            raise SystemExit(f"{file}: its samples are in {options.base} already; leave it out.")
    found = list(_first([base, *measured.values()]))
    found += _added(found, list(chain(*later.values())))
    print(*_fates(found, measured | again | later), sep="\n")
    found = list(_of_one_host(list(_whole(found, chain(*(measured | again | later).values())))))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "measurements.sqlite"
        with Database.open(path, create=True) as database, database.write() as connection:
            print(f"{records.add(connection, found)} records, {len(base)} of them in {options.base}")
        anew = options.train_all or options.from_nothing
        kept = set() if anew else set(_kept(path, base, found, options.base))
        rest = [name for name in registry.operators() if name not in kept]
        with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
            each = pool.map if options.jobs > 1 else map
            for words in each(_trained, rest, repeat(path)):
                print(words, flush=True)
        _tidy(path)
        options.output.write_bytes(lzma.compress(path.read_bytes(), preset=9 | lzma.PRESET_EXTREME))
    print(f"{options.output}: {options.output.stat().st_size:,} bytes")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add = parser.add_argument
    add("files", type=Path, nargs="*", help="as scripts.release.to_database takes them")
    add("--again", type=Path, nargs="+", default=[], help="of which samples alone count")
    add("--later", type=Path, nargs="+", default=[], help="of implementations that came later")
    add("--base", type=Path, default=PACKED, help="packed database to extend (default: what ships)")
    add("--from-nothing", action="store_true", help="extend none")
    add("--train-all", action="store_true", help="also operators of which nothing came")
    add("--output", type=Path, default=PACKED, help="default: what the package ships")
    add("--jobs", type=int, default=1, help="processes, each of which trains an operator at a time")
    options = parser.parse_args(arguments)
    if options.from_nothing and not options.files:
        parser.error("--from-nothing needs files to make a database of")
    return options


def packed(file: Path) -> list[Record]:
    """The records of a database that was packed here, at whatever revision."""
    with _unpacked(file) as connection:
        return list(records.find(connection, regime=None))


@contextmanager
def _unpacked(file: Path) -> Iterator[Connection]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "measurements.sqlite"
        path.write_bytes(lzma.decompress(file.read_bytes()))
        with Database.open(path, create=True) as database, database.read() as connection:
            yield connection


def _kept(path: Path, base: Sequence[Record], found: Sequence[Record], file: Path) -> Iterator[str]:
    """Operators whose cost models are copied from the base, since all that they learned from is the same."""
    before, now = (_by_operator(one) for one in (base, found))
    same = {name for name in registry.operators() if before[name] == now[name]}
    with _unpacked(file) as connection, Database.open(path) as database, database.write() as target:
        for name in sorted(same):
            model = models.latest(connection, operator=name)
            if model is not None and same.issuperset(RELATED.get(name, ())):
                models.add(target, model=model)
                print(f"{name}: the cost model stays, since no record of what it learned from is new")
                yield name


def _by_operator(found: Iterable[Record]) -> dict[str, set[str]]:
    """The records that cost models learn from, of launched layers, by operator."""
    lines: dict[str, set[str]] = defaultdict(set)
    for record in found:
        if record.regime == LAUNCHED:
            lines[record.problem.operator].add(record.to_json())
    return lines


def _is_in(base: Sequence[Record], visits: Iterable[Record]) -> bool:
    """Whether most visits to candidates of the base are in its records.

    Of one visit alone its samples do not tell: they may be a run of those of another by chance.
    """
    known = {_candidate(record): record for record in base}
    pairs = [(known[key], visit) for visit in visits if (key := _candidate(visit)) in known]
    held = [_holds(record, visit) for record, visit in pairs if _pools(record, visit)]
    return 2 * sum(held) > len(held)


def _holds(record: Record, visit: Record) -> bool:
    """Whether a visit is the record's, or its samples, rounded, are a run of the record's."""
    if record.measured_at == visit.measured_at:
        return True
    samples, part = (_rounded(one).total.raw_ms for one in (record, visit))  # type: ignore[union-attr]
    return any(samples[at : at + len(part)] == part for at in range(len(samples) - len(part) + 1))


def _pools(record: Record, visit: Record) -> bool:
    """Whether a candidate's record and another visit to it are good, with samples to put together."""
    good = record.status is Status.OK and visit.status is Status.OK
    return good and all(one.total and len(one.total.raw_ms) == one.total.samples for one in (record, visit))


def _fates(found: Sequence[Record], files: Mapping[Path, list[Record]]) -> Iterator[str]:
    """What becomes of the records of each file, in a line."""
    own, known = set(map(id, found)), {_candidate(record): record for record in found}

    def fate(visit: Record) -> str:
        record = known.get(_candidate(visit))
        if id(visit) in own:
            return "by themselves"
        return "as samples" if record and _pools(record, visit) else "left out"

    for file, visits in files.items():
        fates = Counter(map(fate, visits))
        words = [f"{fates[one]} {one}" for one in ("by themselves", "as samples", "left out")]
        yield f"{file.name}: {len(visits)} records, {', '.join(words)}"


def _first(files: Sequence[list[Record]]) -> Iterator[Record]:
    """The records of the files, but for good ones of problems that an earlier file has good ones of.

    How a candidate failed is kept where no earlier file says how it ended.
    """
    timed: set[tuple[str, ...]] = set()
    ended: set[tuple[str, ...]] = set()
    for of_file in files:
        for record in of_file:
            failed = record.status is not Status.OK and (*_where(record), *_version(record)) not in ended
            if failed or _where(record) not in timed:
                yield record
        timed |= {_where(record) for record in of_file if record.status is Status.OK}
        ended |= {(*_where(record), *_version(record)) for record in of_file}


def _whole(found: Sequence[Record], measured: Iterable[Record]) -> Iterator[Record]:
    """The records found with the samples of every visit, rounded."""
    visits: dict[tuple[str, ...], dict[datetime, Record]] = defaultdict(dict)
    for record in measured:
        visits[_candidate(record)][record.measured_at] = record
    for record in found:
        others = [one for at, one in visits[_candidate(record)].items() if at != record.measured_at]
        yield _rounded(pool([*others, record]))


def _candidate(record: Record) -> tuple[str, ...]:
    """Equal for what compares: alike in all but the host's number of cores, where a GPU computes."""
    clock = SAME_CLOCK.get(record.policy, record.policy)
    return *_where(record), *_version(record), clock, _software(record).fingerprint


def _software(record: Record) -> Environment:
    """What it was measured with, on a GPU by one thread, whatever the host has."""
    software = record.environment
    return replace(software, threads=1) if record.device.kind == "cuda" else software


def _of_one_host(found: Sequence[Record]) -> Iterator[Record]:
    """The records with one device for all hosts of a GPU that have the same processor."""
    places: dict[tuple[str, str], Device] = {}
    for record in sorted(found, key=lambda record: record.device.launch_us or math.inf):
        place = record.device.key, _processor(record.device)
        if place not in places:
            places[place] = replace(record.device, host=place[1])
    for record in found:
        device = places[record.device.key, _processor(record.device)]
        yield replace(record, device=device, environment=_software(record))


def _processor(device: Device) -> str:
    """The host, on a GPU without its number of cores."""
    return CORES.sub("", device.host) if device.kind == "cuda" else device.host


def _rounded(record: Record) -> Record:
    """The record with samples of DIGITS digits, and percentiles of these; see PASS."""
    whole = {name: getattr(record, name) for name in TIMINGS}
    rounded = {
        name: timing([float(f"{sample:.{DIGITS}g}") for sample in one.raw_ms])
        for name, one in whole.items()
        if one is not None and len(one.raw_ms) == one.samples
    }
    for part, step in PASS.items():
        if part in rounded and whole[step] is not None:
            rounded[part] = replace(rounded[part], raw_ms=())
    return replace(record, **rounded)


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
    name, version = record.implementation, record.implementation_version
    return name, registry.standing_version(record.problem.operator, name, version)


def _where(record: Record) -> tuple[str, ...]:
    return record.problem.key, record.device.key, record.regime


def _of(file: Path) -> list[Record]:
    """The records of a sweep that may ship."""
    return [record for record in read_records(file) if record.status is not Status.OUT_OF_MEMORY]


def _trained(operator: str, path: Path) -> str:
    with Database.open(path) as database:
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
