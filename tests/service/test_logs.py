"""Lines of the log, which nobody can forge by what he calls things."""

import json
import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kernel_selector.service.connections import Seldom
from kernel_selector.service.logs import LOGGER, text_lines

ROOT = Path(__file__).parents[2]
FORGED = "2026-11-28T15:20:31.204Z INFO:     POST '/v1/choices' 200"
OURS = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (WARNING|ERROR): "
LOGGERS = ["uvicorn.error", "uvicorn.access", "asyncio", LOGGER.name]
PROGRAM = r"""
import logging, logging.config, sys
from kernel_selector.service.logs import log_config
log_format, forged, *loggers = sys.argv[1:]
logging.config.dictConfig(log_config(*([] if log_format == "text" else [log_format])))
for name in loggers:
    logger = logging.getLogger(name)
    logger.warning("no %s: 100 %%", f"a\n{forged}\x1b[2J\u202e \xf6")
    try:
        raise ValueError(f"a\n{forged}\r{forged}") from KeyError(forged)
    except ValueError:
        logger.exception("failed", stack_info=True)
"""


def lines_of(log_format: str) -> list[str]:
    """What loggers of a service write: its own, the server's and a library's."""
    command = [sys.executable, "-c", PROGRAM, log_format, FORGED, *LOGGERS]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    return [one for one in (ran.stderr + ran.stdout).decode().split("\n") if one]


def test_a_line_of_text_cannot_be_forged() -> None:
    lines = lines_of("text")
    ours = [one for one in lines if re.match(OURS, one)]
    below = [one for one in lines if one not in ours]
    said = f"no a\\n{FORGED}\\x1b[2J\\u202e \xf6: 100 %"
    assert [one.split(maxsplit=2)[2] for one in ours] == [said, "failed"] * len(LOGGERS)
    assert all(one.startswith("    ") and one.isprintable() for one in below)
    assert below.count(f"    {FORGED}\\r{FORGED}") == len(LOGGERS)
    assert below.count("    Traceback (most recent call last):") == len(LOGGERS)
    assert below.count("    Stack (most recent call last):") == len(LOGGERS)


def test_a_line_of_json_is_escaped_once() -> None:
    found = [json.loads(one) for one in lines_of("json")]
    said = [one["message"] for one in found]
    assert said == [f"no a\n{FORGED}\x1b[2J\u202e \xf6: 100 %", "failed"] * len(LOGGERS)
    assert all(f"a\n{FORGED}\r{FORGED}" in one["exception"] for one in found if one["level"] == "error")


def test_a_record_stays_as_it_is_for_other_handlers() -> None:
    error = (ValueError, ValueError("c\nd"), None)
    record = LOGGER.makeRecord(LOGGER.name, logging.ERROR, "", 0, "a\n%s", ("b",), error)
    assert text_lines().format(record).endswith(" a\\nb\n    ValueError: c\n    d")
    assert (record.getMessage(), record.exc_info, record.exc_text) == ("a\nb", error, None)


def test_a_wrong_argument_is_no_error_of_who_logs(capsys: pytest.CaptureFixture[str]) -> None:
    seldom = Seldom()
    seldom._left_out = 2
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(text_lines())
    for filters in (LOGGER.filters, [seldom]):
        logger = logging.Logger("any")
        logger.filters, logger.handlers = filters, [handler]
        logger.warning("%d warnings", "no")
        assert "--- Logging error ---" in capsys.readouterr().err


def test_how_many_warnings_were_left_out_is_said_behind_what_is_formatted() -> None:
    seldom = Seldom()
    seldom._left_out = 2
    record = LOGGER.makeRecord(LOGGER.name, logging.WARNING, "", 0, "%d %%", (7,), None)
    assert seldom.filter(record)
    assert record.getMessage() == "7 % And 2 more such warnings."
