"""What may be read but not written is read, and says so when it is to be written."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernel_selector.db import Database, DatabaseMissing, DatabaseReadOnly, DatabaseUnreachable


@pytest.fixture
def public(filled: Path) -> Iterator[Path]:
    """The filled database in a folder that every account may enter, while we are not root.

    Root may write what is read-only, so the test takes an ordinary account for its duration.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / filled.name
        path.write_bytes(filled.read_bytes())
        path.chmod(0o444)
        os.chmod(folder, 0o555)
        Database.open(filled).close()  # imports all that is needed
        root = os.geteuid() == 0
        if root:
            os.seteuid(65534)
        yield path
        if root:
            os.seteuid(0)
        os.chmod(folder, 0o755)


def test_a_read_only_file_is_read_and_not_written(public, total):
    for create in (False, True):
        with Database.open(public, create=create) as database:
            assert total(database) == 3
            with (
                pytest.raises(DatabaseReadOnly, match=f"{public} may only be read"),
                database.write(),
            ):
                pass
    assert [file.name for file in public.parent.iterdir()] == [public.name]


def test_a_new_file_in_a_read_only_folder(public, refusal):
    refusal(DatabaseReadOnly, public.parent / "b.sqlite", "b.sqlite", "SELECTOR_DATABASE_URL", create=True)
    refusal(DatabaseReadOnly, public.parent / "c" / "b.sqlite", "SELECTOR_DATABASE_URL", create=True)
    refusal(DatabaseMissing, public.parent / "b.sqlite", "b.sqlite")


def test_a_file_that_may_not_be_read(public, refusal):
    if os.getuid() != 0:
        public.chmod(0)
    else:
        os.seteuid(0)
        public.chmod(0)
        os.seteuid(65534)
    refusal(DatabaseUnreachable, public, str(public), "cannot be read: Permission denied")
