"""The cache of compiled CUDA code: what is read from there is what this user wrote, or it is made anew."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kernel_selector.kernels.runtime import nvrtc


@pytest.fixture
def compiled(tmp_path, monkeypatch):
    """A function: the code of a source, and how often it has been compiled by now."""
    source = tmp_path / "kernel.cu"
    source.write_text("code")
    made = []
    monkeypatch.setenv("KERNEL_SELECTOR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(nvrtc, "_digest", lambda *_: "digest")
    monkeypatch.setattr(nvrtc, "_compile", lambda *_: made.append(1) or b"\x7fELF machine code")

    def look():
        nvrtc.compiled.cache_clear()
        return nvrtc.compiled(source, "90a", ()), len(made)

    yield look
    nvrtc.compiled.cache_clear()


def kept(tmp_path: Path) -> Path:
    (file,) = (tmp_path / "cache").iterdir()
    return file


def test_code_is_compiled_once(compiled, tmp_path):
    assert compiled() == compiled() == (b"\x7fELF machine code", 1)
    assert kept(tmp_path).stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "cache").stat().st_mode & 0o077 == 0


def flip(file):
    data = bytearray(file.read_bytes())
    data[5] ^= 1
    file.write_bytes(data)


def link(file):
    other = file.with_name("other")
    file.rename(other)
    file.symlink_to(other)


def pipe(file):
    file.unlink()
    os.mkfifo(file)


DAMAGES = {
    "a flipped bit": flip,
    "cut off": lambda file: file.write_bytes(file.read_bytes()[:-1]),
    "empty": lambda file: file.write_bytes(b""),
    "of an earlier version": lambda file: file.write_bytes(b"\x7fELF machine code"),
    "others may write it": lambda file: file.chmod(0o622),
    "a link": link,
    "a pipe": pipe,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_what_is_not_as_it_was_written_is_not_run(compiled, tmp_path, caplog, damage):
    compiled()
    damage(kept(tmp_path))
    assert compiled() == (b"\x7fELF machine code", 2)
    assert "compiled anew" in caplog.text
    caplog.clear()
    assert compiled()[1] == 2
    assert caplog.text == ""


def test_a_file_of_somebody_else_is_not_run(compiled, tmp_path, caplog, monkeypatch):
    compiled()
    if os.geteuid() == 0:  # who alone may give files away
        os.chown(kept(tmp_path), 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert compiled()[1] == 2
    assert "of another user" in caplog.text
