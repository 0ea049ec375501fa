"""A database on a network file system is warned of."""

from __future__ import annotations

import pytest

from selector.selection.database import network_warning

MOUNTS = """\
/dev/sda1 / ext4 rw 0 0
server:/home /home nfs4 rw 0 0
tmpfs /home/user/fast tmpfs rw 0 0
//box/share /mnt/with\\040space cifs rw 0 0
me@box: /mnt/ssh fuse.sshfs rw 0 0
cut
"""


@pytest.mark.parametrize(
    ("location", "kind"),
    [
        ("/data/m.sqlite", None),
        ("/home/user/m.sqlite", "nfs4"),
        ("/home/user/fast/m.sqlite", None),
        ("/homework/m.sqlite", None),
        ("/mnt/with space/m.sqlite", "cifs"),
        ("/mnt/ssh/m.sqlite", "fuse.sshfs"),
        ("postgresql://server/home", None),
    ],
)
def test_only_network_file_systems_are_warned_of(tmp_path, location: str, kind: str | None) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(MOUNTS)
    found = network_warning(location, mounts)
    if kind is None:
        assert found is None
    else:
        assert found is not None
        assert location in found
        assert f"({kind})" in found
        assert "PostgreSQL" in found


def test_a_system_that_does_not_say_is_no_reason_to_warn(tmp_path) -> None:
    assert network_warning("/data/m.sqlite", tmp_path / "none") is None
