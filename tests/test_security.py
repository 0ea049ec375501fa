"""SECURITY.md is true where that can be looked at."""

import re
from pathlib import Path

from kernel_selector.service.access import DOCUMENTATION, FREE, LOOKS, NEEDED
from kernel_selector.service.settings import PREFIX, Settings
from kernel_selector.service.tokens import SCOPES

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "SECURITY.md").read_text()


def test_every_scope_is_described():
    assert set(re.findall(r"^\| a token `(\w+)`", TEXT, re.MULTILINE)) == set(SCOPES)
    assert set(NEEDED.values()) <= set(SCOPES)


def test_what_is_free_tells_nothing_of_measurements():
    assert {"/healthz", "/readyz"} | DOCUMENTATION | LOOKS == FREE
    assert all(path.startswith(("/docs", "/openapi.json")) for path in DOCUMENTATION)
    assert all(path.startswith("/page/") for path in LOOKS)


def test_settings_that_are_named_exist():
    for name in re.findall(rf"`{PREFIX}([A-Z_]+)[=`]", TEXT):
        assert name.lower() in Settings.model_fields


def test_nothing_is_unpickled():
    for folder in ("db", "selector", "service"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text()
            assert not re.search(r"^\s*(import|from) (pickle|joblib|marshal|shelve)\b", text, re.MULTILINE), (
                path
            )
            assert "allow_pickle=True" not in text, path
