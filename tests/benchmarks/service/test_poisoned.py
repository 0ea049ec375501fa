"""The benchmark of poisoned records: honest ones count, or it measures nothing and says so."""

from dataclasses import replace

import pytest

from benchmarks.service import poisoned
from kernel_selector.db import Database


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(poisoned, "HIDDEN", (4, 8, 12))
    return dict.fromkeys(((hidden, name) for hidden in poisoned.HIDDEN for name in poisoned.NAMES), 10.0)


def test_no_honest_record_is_set_aside(few, tmp_path):
    """All were, once the review asked for what a probe gives: their GPU was that of the data sheet."""
    Database.open(tmp_path / "measured.sqlite", create=True).close()
    right = {name: poisoned.honest(few, place) for place, name in enumerate(poisoned.HONEST)}
    assert poisoned.send(tmp_path / "measured.sqlite", right) == 0


@pytest.mark.usefixtures("few")
def test_it_ends_with_words_where_honest_records_are_set_aside(monkeypatch):
    made = poisoned.record

    def unprobed(*args, **given):
        one = made(*args, **given)
        return replace(one, device=replace(one.device, launch_us=None))

    monkeypatch.setattr(poisoned, "record", unprobed)
    with pytest.raises(SystemExit, match=r"15 honest records were set aside: expected 0"):
        poisoned.poisoned(trusted=False)
