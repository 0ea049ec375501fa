"""Log lines as text with times in UTC, or as JSON, one document a line, and bounds of what clients cause."""

from __future__ import annotations

import json
import logging
import math
import sys
import time
from copy import copy, deepcopy
from datetime import UTC, datetime
from typing import Any

# a child of uvicorn's logger: its handler and its --log-level apply
LOGGER = logging.getLogger("uvicorn.error.kernel_selector")
SILENT_S = 60.0
INDENT = "    "  # of the lines of a traceback


class OnItsLine(logging.Formatter):
    """Formatter of lines of text that nobody can forge, whatever clients call things: what does not print is
    written out, and lines of tracebacks are indented, where those of the log begin with a time.
    """

    def __init__(self, lines: logging.Formatter) -> None:
        super().__init__()
        self._lines = lines

    def format(self, record: logging.LogRecord) -> str:
        """The line, with those of a traceback below."""
        shown = copy(record)  # other handlers have the record as it is
        shown.msg, shown.args = _written_out(record.getMessage()), ()
        vars(shown).pop("color_message", None)  # uvicorn's own words for what it says of its start
        traceback = record.exc_info and self.formatException(record.exc_info)
        shown.exc_info, shown.exc_text = None, _indented(traceback or record.exc_text)
        shown.stack_info = _indented(record.stack_info)
        return self._lines.format(shown)


def _indented(text: str | None) -> str | None:
    return text and "\n".join(INDENT + _written_out(line) for line in text.split("\n"))


def _written_out(text: str) -> str:
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


class Seldom(logging.Filter):
    """Filter of warnings that any client can cause: one in SILENT_S passes, and says how many did not."""

    def __init__(self) -> None:
        super().__init__()
        self._next, self._left_out = -math.inf, 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is written; what is worse than a warning always is."""
        if record.levelno > logging.WARNING:
            return True
        now = time.monotonic()
        if now < self._next:
            self._left_out += 1
            return False
        if self._left_out:
            record.msg = f"{record.msg} And {self._left_out} more such warnings."  # formatted with the rest
        self._next, self._left_out = now + SILENT_S, 0
        return True


def text_lines(use_colors: bool | None = None) -> logging.Formatter:
    """uvicorn's formatter of lines, each `OnItsLine`, with the time in UTC before it."""
    from uvicorn.logging import DefaultFormatter

    form, moment = "%(asctime)s.%(msecs)03dZ %(levelprefix)s %(message)s", "%Y-%m-%dT%H:%M:%S"
    formatter = DefaultFormatter(form, moment, use_colors=use_colors)
    formatter.converter = time.gmtime
    return OnItsLine(formatter)


def log_config(log_format: str = "text") -> dict[str, Any]:
    """uvicorn's configuration of its log, with lines of `text_lines` or of JSON, also of other libraries."""
    from uvicorn.config import LOGGING_CONFIG

    configuration = deepcopy(LOGGING_CONFIG)
    formatter = JsonLines if log_format == "json" else text_lines
    configuration["formatters"] = {name: {"()": formatter} for name in configuration["formatters"]}
    configuration["root"] = {"handlers": ["default"], "level": "WARNING"}
    return configuration


class JsonLines(logging.Formatter):
    """Time, level and message; of a request also what it was and how it ended."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields = getattr(record, "request", None) or {"message": record.getMessage()}
        line = {"time": moment, "level": record.levelname.lower(), **fields}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)  # escapes line breaks and what is not ASCII


def write_json_lines() -> None:
    """Let the service's log be lines of JSON on stderr, and what uvicorn says of faults too: a traceback is
    one line. uvicorn sets up its own logging when it is configured, so call this again when it starts."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for logger in (LOGGER, logging.getLogger("uvicorn")):
        logger.handlers = [handler]
        logger.propagate = False
    LOGGER.setLevel(logging.INFO)
