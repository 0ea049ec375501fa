"""Whether the code that a result was measured with is today's, by the versions that the result recorded."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from benchmarks.common.peers import is_peer
from benchmarks.common.result import implementation_of, items

Result = Mapping[str, Any]  # a file of benchmarks/results

T = TypeVar("T")

VERSION = re.compile(r"[0-9a-f]{12}(\.[0-9a-f]{12})?")
FRESH = "all implementations are the same today"


def recorded(result: Result) -> Iterator[tuple[str, str]]:
    """Names as "operator.implementation" with the version that was measured, wherever a result has them."""
    for holder in (result, *items(result, "runs", "rows", "losses")):
        for name, version in holder.get("versions", {}).items():
            if not is_peer(name.partition(".")[2]):
                yield name, version
    for record in items(result, "records"):
        if "implementation_version" in record:
            yield (
                f"{record['problem']['operator']}.{record['implementation']}",
                record["implementation_version"],
            )


def standing(result: Result) -> dict[str, bool]:
    """By name, whether what was measured is what the implementation does today."""
    from kernel_selector.kernels import registry

    found: dict[str, bool] = {}
    for name, version in set(recorded(result)):
        now = implementation_of(name)
        same = now is not None and registry.standing_version(now.operator, now.name, version) == now.version
        found[name] = found.get(name, True) and same
    return found


def gone(result: Result) -> list[str]:
    """Names of implementations that were measured and are no more."""
    return sorted(name for name in {name for name, _ in recorded(result)} if implementation_of(name) is None)


def unusable(result: Result) -> str | None:
    """Reason why nothing can be shown of a result, by the versions that it names; or None."""
    names = dict(recorded(result))
    wrong = sorted(f"{name} {version!r}" for name, version in names.items() if not VERSION.fullmatch(version))
    if wrong:
        return f"names versions that there never were: {', '.join(wrong[:3])}"
    if names and set(gone(result)) == set(names):
        return f"all that it measured is gone: {', '.join(sorted(names)[:3])}"
    return None


def is_fresh(result: Result) -> bool:
    """Whether versions were recorded, and all of them are today's."""
    found = standing(result)
    return bool(found) and all(found.values())


def mark(result: Result) -> str:
    """Words of a caption for how much of the measured code is today's."""
    found, left_out = standing(result), gone(result)
    if is_fresh(result):
        return FRESH
    at = f"measured at {commits(result)}"
    if not found:
        return f"**{at}, versions were not recorded: code may have changed since**"
    changed = sum(not same for same in found.values())
    words = f"**{at}, code changed since** ({changed} of {len(found)} implementations)"
    if left_out:
        words += f"; left out, as they are no more: {', '.join(f'`{name}`' for name in left_out)}"
    return words


def by_device(found: Iterable[tuple[Result, T]]) -> dict[str, list[tuple[Result, T]]]:
    """What results have, by device; those of which most is of today's code come first."""
    devices: dict[str, list[tuple[Result, T]]] = {}
    for result, one in found:
        devices.setdefault(result["device"], []).append((result, one))
    stale = {name: sum(not is_fresh(result) for result, _ in each) for name, each in devices.items()}
    return {name: devices[name] for name in sorted(devices, key=lambda name: (stale[name], name))}


def commits(result: Result) -> str:
    """The commits that a result was measured at: those of its runs, or its own and its lines'."""
    runs = [run["commit"] for run in items(result, "runs") if "commit" in run]
    lines = [line["commit"] for line in items(result, "rows", "losses") if "commit" in line]
    return ", ".join(f"`{commit}`" for commit in dict.fromkeys(runs or [result["commit"], *lines]))


def origin(result: Result) -> str:
    """The day and the commits of a result, and how much of the measured code is today's."""
    at = f"commit {commits(result)}; " if is_fresh(result) else ""
    return f"{result['measured_at'][:10]}, {at}{mark(result)}"


def origins(found: Iterable[Result]) -> str:
    """A line for each result: its file, and where it comes from."""
    return "".join(f"- `{result['file']}`: {origin(result)}\n" for result in found)
