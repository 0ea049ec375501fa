"""The entry point: runs a command and turns every error into one clear line and an exit code."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Sequence

import typer

from .application import app
from .terminal import words

BROKEN, BAD_INPUT, INTERRUPTED, BROKEN_PIPE = 1, 2, 130, 141
DEBUG_VARIABLE = "SELECTOR_DEBUG"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line with `arguments` (of the process when None); returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = app(given, prog_name="selector", standalone_mode=False)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # the reader has left (`| head`): nothing may be written at exit either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except Exception as error:
        if os.environ.get(DEBUG_VARIABLE):
            traceback.print_exc()
        kind, message, code = _explain(error, given)
        if message:
            message = words.about(_database(given), message)
            _print_error(kind, message, as_json="--json" in given)
    return code if isinstance(code, int) else 0


def _command(given: Sequence[str]) -> list[str]:
    """The words of a command line that name its command, with the groups that this is in."""
    place, found = typer.main.get_command(app), list[str]()
    for word in given:
        inner = getattr(place, "commands", {}).get(word)
        if inner is not None:
            place = inner
            found.append(word)
        elif not word.startswith("-"):
            break
    return found


def _explain(error: Exception, given: Sequence[str]) -> tuple[str, str, int]:
    """Class name, one-line message and exit code of an error."""
    from kernel_selector.kernels.contract import SelectorError, UnsupportedProblem
    from selector.errors import NothingFits

    wishes = (ValueError, LookupError, NothingFits, UnsupportedProblem)
    kind = type(error).__name__
    if isinstance(error, SelectorError):
        return kind, str(error), BAD_INPUT if isinstance(error, wishes) else BROKEN
    usage = getattr(error, "format_message", None)  # typer's own errors: unknown option, missing value
    if usage is not None:
        place = " ".join(["selector", *_command(given)])
        message = usage().rstrip(".")  # empty when the help was printed instead
        hint = words.without_dashes(getattr(error, "option_name", None))
        return "UsageError", message and f"{message}.{hint} Try: {place} --help", BAD_INPUT
    if isinstance(error, OSError):  # a full disk, a folder that is not there: not ours to mend
        return kind, f"{error}. {DEBUG_VARIABLE}=1 shows where it happened.", BROKEN
    return (
        kind,
        f"unexpected {kind}: {error}. This is a defect; {DEBUG_VARIABLE}=1 shows where it happened.",
        BROKEN,
    )


def _database(given: Sequence[str]) -> str | None:
    """What `--database` was given; the last one counts."""
    found = None
    for word, following in zip(given, [*given[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name == "--database":
            found = value if equals else following
    return found


def _print_error(kind: str, message: str, *, as_json: bool) -> None:
    line = " ".join(message.split())
    document = json.dumps({"error": {"type": kind, "message": line}})
    print(document if as_json else f"error: {line}", file=sys.stderr)
