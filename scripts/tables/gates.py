"""Tables of what the correctness gate says of implementations."""

from __future__ import annotations

from pathlib import Path

from .parts import Result, results, run, table
from .standing import mark


def recurrent(folder: Path) -> str:
    """For each device what became of every implementation of recurrent layers."""
    return "".join(_gate(result) for result in results(folder, "recurrent_gate_*", "implementations"))


def sublayers(folder: Path) -> str:
    """For each device what became of every implementation, and where torch's own choice is wrong."""
    return "".join(
        _gate(result) + _unsafe(result) for result in results(folder, "gate_sublayers_*", "implementations")
    )


def verdicts(folder: Path) -> str:
    """For each device what the gate says of every operator's implementations, and which it rejects most."""
    return "".join(_verdicts(result) for result in results(folder, "gate_verdicts_*", "verdicts", "each"))


def cudnn(folder: Path) -> str:
    """The regions where cuDNN is wrong."""
    lines = []
    for operator in ("lstm", "gru", "rnn"):
        for result in results(folder, f"cudnn_{operator}_errors", "records", "checked"):
            failures, environment = result["records"], result["environment"]
            found = {
                name: sorted({failure[name] for failure in failures}) for name in ("dtype", "hidden", "batch")
            }
            words = "; ".join(f"{name} {', '.join(map(str, values))}" for name, values in found.items())
            lines.append(
                f"- `{operator}`: {len(failures)} of {result['checked']} problems failed the gate; {words} "
                f"({result['device']}, torch {environment['torch']}, cuDNN {environment['cudnn']}, "
                f"commit `{result['commit']}`, {result['measured_at'][:10]})."
            )
    return "\n" + "\n".join(lines) + "\n\n"


def _gate(result: Result) -> str:
    head = ("implementation", "passed", "refused", "failed", "worst error, of the allowed one")
    shown = ("passed", "refused", "failed", "worst_error_ratio")
    rows = (
        (f"`{name}`", *("-" if total[one] is None else f"{total[one]}" for one in shown))
        for name, total in result["implementations"].items()
    )
    return f"{run(result)}; {result['problems']} problems; {mark(result)}:\n{table(head, rows)}"


def _verdicts(result: Result) -> str:
    shown = ("passed", "refused", "failed")
    rows = (
        (f"`{name}`", *(str(counts.get(one, 0)) for one in shown))
        for name, counts in result["each"].items()
        if counts.get("failed")
    )
    total = result["verdicts"]
    return (
        f"{run(result)}; {mark(result)}; {result['problems']} problems: {total['passed']} passed, "
        f"{total['refused']} refused, {total['failed']} failed, by {len(result['each'])} implementations, of "
        f"which these failed somewhere:\n{table(('implementation', *shown), rows)}"
    )


def _unsafe(result: Result) -> str:
    """Problems on which torch's own choice was to be judged, and what became of it."""
    lines = []
    for one in result.get("unsafe") or ():
        found = one["results"].get(one["default"], "not judged")
        words = found if isinstance(found, str) else f"passed, error {found} of the allowed one"
        if isinstance(found, dict):
            words = f"{found['status'].replace('_', ' ')}: {found['reason']}"
        right = [f"`{name}`" for name, other in one["results"].items() if isinstance(other, float)]
        lines.append(
            f"- `{one['problem']}`: `{one['default']}` {words}. Right: {', '.join(right) or 'none'}.\n"
        )
    return "".join(lines) + "\n" * bool(lines)
