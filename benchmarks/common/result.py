"""Result files of all benchmarks: figures together with what they were measured on."""

from __future__ import annotations

import json
import lzma
import os
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.common.lines import keep, put, text_of
from kernel_selector.kernels import measure, registry
from kernel_selector.kernels.contract import Implementation

KEYS = ("name", "measured_at", "commit", "device", "environment")  # of every result

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks/results"
PACKED_BYTES = 100_000  # of a file, from which on it is packed


def write_result(
    name: str,
    payload: Mapping[str, Any],
    *,
    torch_device: str | None = None,
    commit: str | None = None,
    lines: Sequence[str] = (),
    folder: Path = RESULTS,
) -> Path:
    """Write `<folder>/<name>.json`: the payload, the environment, the commit and the time. Returns it.

    `torch_device` is what was measured on, by default this machine's default one; its rates are not
    taken: a benchmark that needs them measures them itself. `commit` is for a copy of the checkout
    without its repository. `lines` are JSON, and become the list `records`. `load_1min` tells how busy
    the machine was. A file of before, packed or not, is replaced.
    """
    torch_device = torch_device or measure.default_torch_device()
    result = {
        "name": name,
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit or current_commit(),
        "device": measure.identify(torch_device).name,
        "cores": len(os.sched_getaffinity(0)),
        "load_1min": round(os.getloadavg()[0], 2),
        "environment": asdict(measure.current_environment(torch_device)),
        **payload,
    }
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.json"
    text = laid_out(result)
    if lines:
        text = text.removesuffix("\n}") + ',\n "records": [\n' + ",\n".join(lines) + "\n ]\n}"
    put(text + "\n", path)
    path.with_suffix(".json.xz").unlink(missing_ok=True)
    return path


def pack(text: str, file: Path) -> Path:
    """A result under its name, packed by xz from PACKED_BYTES on; one in the other form is removed."""
    packed = file.with_suffix(".json.xz")
    if len(text) < PACKED_BYTES:
        put(text, file)
        packed.unlink(missing_ok=True)
        return file
    keep(text, packed)
    file.unlink(missing_ok=True)
    return packed


class BadResult(ValueError):
    """A result file that cannot be used; names the file and what is wrong with it."""


def read_result(file: Path, needs: Sequence[str] = ()) -> dict[str, Any]:
    """The result in a file, packed by xz or not, with all KEYS and `needs`. Raises BadResult."""
    try:
        result = json.loads(text_of(file))
    except (OSError, EOFError, ValueError, lzma.LZMAError) as error:
        raise BadResult(
            f"{file.name}: cut off, or no JSON ({type(error).__name__}: {error}). Measure it again."
        ) from error
    missing = [key for key in (*KEYS, *needs) if not isinstance(result, dict) or key not in result]
    if missing:
        raise BadResult(
            f"{file.name}: lacks {', '.join(missing)}; it is no result of this program, or of another schema."
        )
    devices = {_name(result["device"])} | {
        _name(one["device"]) for one in items(result, "runs", "records") if "device" in one
    }
    if len(devices) > 1:
        raise BadResult(f"{file.name}: of {len(devices)} devices ({', '.join(sorted(devices))}), not of one.")
    found: dict[str, Any] = result
    return found


def items(result: Mapping[str, Any], *names: str) -> Iterator[Mapping[str, Any]]:
    """All items of a result's lists of these names that are objects; of others, such as counts, none."""
    for name in names:
        found = result.get(name)
        yield from (one for one in (found if isinstance(found, list) else ()) if isinstance(one, Mapping))


def _name(device: Any) -> str:
    return str(device["name"] if isinstance(device, Mapping) else device)


def versions_of(names: Iterable[str]) -> dict[str, str]:
    """The versions of implementations named "operator.implementation", of those that there are."""
    known = ((name, implementation_of(name)) for name in sorted(names))
    return {name: found.version for name, found in known if found is not None}


def implementation_of(name: str) -> Implementation | None:
    """The implementation named "operator.implementation"; None where there is none, or none any more."""
    operator, _, own = name.partition(".")
    return registry.implementations(operator).get(own) if operator in registry.operators() else None


def laid_out(value: Any, margin: str = "") -> str:
    """JSON of a result: names one a line, and each item of a list on one line, because the tree travels."""
    inner = f"{margin} "
    if isinstance(value, Mapping) and any(isinstance(one, Mapping | list | tuple) for one in value.values()):
        rows = [f"{inner}{json.dumps(name)}: {laid_out(one, inner)}" for name, one in value.items()]
        return "{\n" + ",\n".join(rows) + f"\n{margin}}}"
    if isinstance(value, list | tuple) and any(isinstance(one, Mapping | list | tuple) for one in value):
        return "[\n" + ",\n".join(f"{inner}{_on_one_line(one)}" for one in value) + f"\n{margin}]"
    return _on_one_line(value)


def _on_one_line(value: Any) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def current_commit() -> str:
    """The commit, with `+` when files were changed since; "unknown" outside a repository of our own."""
    try:
        if Path(_git("rev-parse", "--show-toplevel")).resolve() != ROOT:
            return "unknown"
        head = _git("rev-parse", "--short=12", "HEAD")
        return head + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()
