"""T4 format of autotuners (results of FAIR benchmarks), schema version 1: reader and writer.

A configuration in it names what was run. We write one with an entry `implementation`, beside the
hyperparameters, and operator and device in `metadata`; of other files the user says which entries of a
configuration together name the implementation.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

from kernel_selector.kernels.contract.errors import shorten

from ..errors import BadFile, Fault
from .readers import DAMAGED, Line

VERSION = "1.0.0"
INVALIDITY = {
    "correct": "ok",
    "timeout": "timeout",
    "compile": "unsupported",
    "runtime": "crashed",
    "correctness": "incorrect",
    "constraints": "unsupported",
}
OUTCOMES = {
    "ok": "correct",
    "timeout": "timeout",
    "unsupported": "constraints",
    "crashed": "runtime",
    "incorrect": "correctness",
    "out_of_memory": "runtime",
}
MILLISECONDS = {"ms": 1.0, "milliseconds": 1.0, "s": 1e3, "seconds": 1e3, "us": 1e-3, "ns": 1e-6}
STATUS = "status"  # a measurement of ours: T4 has fewer words for what can happen


def read_results(file: IO[bytes], naming: Sequence[str]) -> Iterator[Line | Fault]:
    """Results of a T4 file, numbered from 1.

    Raises BadFile for a file in another format.
    """
    try:
        document = json.load(file)
    except (ValueError, RecursionError, *DAMAGED) as error:
        several = " Several JSON documents, one a line, are JSON lines: give --format jsonl."
        hint = several if str(error).startswith("Extra data") else ""
        raise BadFile(f"Not a T4 file, or one that is cut off: {error}.{hint}") from error
    results = document.get("results") if isinstance(document, dict) else None
    if not isinstance(results, list) or str(document.get("schema_version")).partition(".")[0] != "1":
        raise BadFile(f"Not a T4 file that this version reads: {_other(document)}")
    metadata = document.get("metadata")
    common = {
        name: metadata[name]
        for name in ("operator", "device")
        if isinstance(metadata, dict) and isinstance(metadata.get(name), str)
    }
    keys = tuple(naming) or ("implementation",)
    for number, result in enumerate(results, start=1):
        yield _line(number, result, common, keys)


def _other(document: Any) -> str:
    """What a JSON document is instead of results of T4, and what to do with it."""
    if isinstance(document, list):
        return "a JSON array. Write one object a line, as JSON lines (.jsonl)."
    if not isinstance(document, dict):
        return f"the document is {shorten(document)}. Expected an object with `results`."
    if "cache" in document and "tune_params_keys" in document:
        return (
            "a cache file of Kernel Tuner. Let it write the results as T4, with "
            "`kernel_tuner.file_utils.store_output_file(name, results, tune_params)`, and import that file."
        )
    if "implementation" in document:
        return "one measurement. Give --format jsonl."
    if "results" in document:
        version = shorten(document.get("schema_version"))
        return f"its schema_version is {version}. Expected 1, with a list of `results`."
    names = ", ".join(map(str, document))[:200] or "no fields"
    return f"it has {names}. Expected `schema_version` and `results`."


def _line(number: int, result: Any, common: Mapping[str, str], keys: tuple[str, ...]) -> Line | Fault:
    if not isinstance(result, dict) or not isinstance(result.get("configuration"), dict):
        return Fault(number, "a result without a configuration")
    configuration = dict(result["configuration"])
    missing = [key for key in keys if key not in configuration]
    if missing:
        return Fault(
            number,
            f"its configuration has no {missing[0]!r} (it has {', '.join(configuration)}): say with --naming "
            "which of these name the implementation",
        )
    if keys == ("implementation",):
        implementation = str(configuration.pop("implementation"))
    else:
        implementation = ",".join(f"{key}={configuration.pop(key)}" for key in keys)
    status = INVALIDITY.get(str(result.get("invalidity")))
    if status is None:
        return Fault(number, f"invalidity={shorten(result.get('invalidity'))}: no word of T4")
    measured = {
        item["name"]: item
        for item in result.get("measurements") or ()
        if isinstance(item, dict) and isinstance(item.get("name"), str)
    }
    fields = {
        **common,
        "implementation": implementation,
        "hyperparameters": configuration,
        "status": measured.get(STATUS, {}).get("value", status),
        "reason": measured.get("reason", {}).get("value", f"invalidity {result.get('invalidity')}"),
        "bytes": measured.get("bytes", {}).get("value"),
    }
    if status != "ok":
        return Line(number, fields)
    return _timed(number, fields, measured.get("time"))


def _timed(number: int, fields: dict[str, Any], time: Mapping[str, Any] | None) -> Line | Fault:
    if time is None:
        return Fault(number, "no measurement `time`, and invalidity is correct")
    factor = MILLISECONDS.get(str(time.get("unit")))
    if factor is None:
        return Fault(number, f"time in {shorten(time.get('unit'))}: expected {', '.join(MILLISECONDS)}")
    value = time.get("value")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return Fault(number, f"time={shorten(value)}: expected a number")
    return Line(number, fields | {"milliseconds": value * factor})


def result_of(fields: Mapping[str, Any], timestamp: str) -> dict[str, Any]:
    """T4 result of one measurement in our line format."""
    status, time_ms = fields["status"], fields["milliseconds"]
    measurements = [] if time_ms is None else [{"name": "time", "value": time_ms, "unit": "ms"}]
    if fields["bytes"] is not None:
        measurements.append({"name": "bytes", "value": fields["bytes"], "unit": "bytes"})
    if status != "ok":
        measurements += [
            {"name": STATUS, "value": status, "unit": ""},
            {"name": "reason", "value": fields["reason"], "unit": ""},
        ]
    return {
        "timestamp": timestamp,
        "configuration": {**fields["hyperparameters"], "implementation": fields["implementation"]},
        "objectives": ["time"],
        "times": {"runtimes": [] if time_ms is None else [time_ms]},
        "invalidity": OUTCOMES[status],
        "correctness": float(status == "ok"),
        "measurements": measurements,
    }
