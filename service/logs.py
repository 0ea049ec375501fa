"""Log lines as text with times in UTC, or as JSON, one document a line, and bounds of what clients cause."""

from __future__ import annotations

import json
import logging
import math
import sys
import time
from copy import deepcopy
from datetime import UTC, datetime
from typing import Any

# a child of uvicorn's logger: its handler and its --log-level apply
LOGGER = logging.getLogger("uvicorn.error.kernel_selector")
SILENT_S = 60.0


def on_its_line(record: logging.LogRecord) -> bool:
    """A filter that lets all pass, and writes out what does not print: names that clients give have line
    breaks in them."""
    message = record.getMessage()
    if not message.isprintable():
        shown = "".join(one if one.isprintable() else ascii(one)[1:-1] for one in message)
        record.msg, record.args = shown, ()
    return True


LOGGER.addFilter(on_its_line)


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
            record.msg, record.args = f"{record.getMessage()} And {self._left_out} more such warnings.", ()
        self._next, self._left_out = now + SILENT_S, 0
        return True


def text_lines(use_colors: bool | None = None) -> logging.Formatter:
    """uvicorn's formatter of lines, with the time in UTC before each."""
    from uvicorn.logging import DefaultFormatter

    form, moment = "%(asctime)s.%(msecs)03dZ %(levelprefix)s %(message)s", "%Y-%m-%dT%H:%M:%S"
    formatter = DefaultFormatter(form, moment, use_colors=use_colors)
    formatter.converter = time.gmtime
    return formatter


def log_config() -> dict[str, Any]:
    """uvicorn's configuration of its log, with `text_lines`."""
    from uvicorn.config import LOGGING_CONFIG

    configuration = deepcopy(LOGGING_CONFIG)
    configuration["formatters"]["default"] = {"()": text_lines}
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
