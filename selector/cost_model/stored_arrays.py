"""Arrays of a stored cost model, read from the bytes of an npz file and checked before anything uses them.

Bytes in a database may be anything: a file that inflates a thousandfold, an index beyond the columns, a tree
whose walk never ends. What passes here neither crashes nor hangs an answer.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any
from zipfile import ZipFile

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
MOST_BYTES = 2**28  # of all arrays of a model together; those that ship have 2 to 12 MB
READ_HEADER = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def unpacked(data: bytes) -> dict[str, Array]:
    """Arrays by name of an npz file without objects.

    Raises ValueError for one whose arrays are larger than any model's, or than their own bytes, which is
    looked at before anything is inflated as a whole; and what zipfile raises.
    """
    with ZipFile(io.BytesIO(data)) as archive:
        members = archive.infolist()
        if sum(one.file_size for one in members) > MOST_BYTES:
            raise ValueError(f"its arrays have more than {MOST_BYTES} bytes")
        for one in members:
            with archive.open(one) as file:
                read = READ_HEADER.get(np.lib.format.read_magic(file))
                if read is None:
                    raise ValueError(f"{one.filename} is in a layout that no model is stored in")
                shape, _, dtype = read(file)
                if file.tell() + int(np.prod(shape, dtype=object)) * dtype.itemsize != one.file_size:
                    raise ValueError(f"{one.filename} is not as large as its shape")
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        return dict(arrays)


class Part:
    """Arrays of one part of a model, whose names begin with its prefix.

    Methods raise KeyError for an array that is missing, ValueError for one that is not as it has to be.
    """

    def __init__(self, arrays: Mapping[str, Array], prefix: str) -> None:
        self._arrays, self._prefix = arrays, prefix

    def numbers(self, name: str, dtype: str, *shape: int | None, finite: bool = True) -> Array:
        """Array of a dtype and shape (None: any size), finite unless that is not asked for, never NaN."""
        found = self._arrays[f"{self._prefix}_{name}"]
        if found.dtype != np.dtype(dtype):
            raise ValueError(f"{self._prefix}_{name} is of {found.dtype}: expected {dtype}")
        if found.ndim != len(shape) or any(
            size not in (None, own) for size, own in zip(shape, found.shape, strict=True)
        ):
            raise ValueError(f"{self._prefix}_{name} has shape {found.shape}: expected {shape}")
        if found.dtype.kind == "f" and not (np.isfinite(found) if finite else ~np.isnan(found)).all():
            raise ValueError(f"{self._prefix}_{name} has numbers that are not finite")
        return found

    def places(self, name: str, dtype: str, *shape: int | None, below: int) -> Array:
        """Array of whole numbers from 0 to one below a limit."""
        found = self.numbers(name, dtype, *shape)
        if found.size and not 0 <= int(found.min()) <= int(found.max()) < below:
            raise ValueError(f"{self._prefix}_{name} has numbers beyond 0 to {below - 1}")
        return found
