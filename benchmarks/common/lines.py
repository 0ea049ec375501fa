"""The lines of a sweep, records as JSON, from files and to files: as they are, or packed by xz."""

from __future__ import annotations

import lzma
from pathlib import Path


def text_of(file: Path) -> str:
    """The lines of a sweep, packed or not."""
    written = file.read_bytes()
    return (lzma.decompress(written) if file.suffix == ".xz" else written).decode()


def keep(text: str, file: Path) -> None:
    """Write the lines of a sweep as small as can be."""
    file.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
