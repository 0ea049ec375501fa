"""Text of sweeps and results from files and to files: as it is, or packed by xz."""

from __future__ import annotations

import lzma
from pathlib import Path


def text_of(file: Path) -> str:
    """The lines of a sweep, packed or not."""
    written = file.read_bytes()
    return (lzma.decompress(written) if file.suffix == ".xz" else written).decode()


def keep(text: str, file: Path) -> None:
    """Write the lines of a sweep as small as can be."""
    _replace(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME), file)


def put(text: str, file: Path) -> None:
    """Replace a file as a whole: a reader, or a kill, never meets half of it."""
    _replace(text.encode(), file)


def _replace(content: bytes, file: Path) -> None:
    unfinished = file.with_name(f"{file.name}.unfinished")
    unfinished.write_bytes(content)
    unfinished.replace(file)
