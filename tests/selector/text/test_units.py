"""Bytes and times as people read them."""

import pytest

from selector import format_bytes, format_ms


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.0123, "12.3 us"),
        (0.9999, "1 ms"),
        (0.9991, "999 us"),
        (999.9, "1 s"),
        (123456, "123 s"),
        (None, "-"),
    ],
)
def test_times(number, text):
    assert format_ms(number) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1023.7 * 1024, "1024 KiB"), (1.5 * 2**30, "1.5 GiB")],
)
def test_bytes(number, text):
    assert format_bytes(number) == text
