"""Reader of measurements in Parquet files, by pyarrow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Any

from ..errors import BadFile
from .readers import Line, Read, check_columns, nested

INSTALL = "pip install 'kernel-selector[parquet]'"


def read_parquet(file: IO[bytes], read: Read) -> Iterator[Line]:
    """Rows of a Parquet file, numbered from 1.

    Raises BadFile without pyarrow, and for another file or one without the columns of measurements.
    """
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise BadFile(f"Parquet files are read by pyarrow, which is not installed: {INSTALL}.") from error
    try:
        opened = parquet.ParquetFile(file)
        _check(opened.schema_arrow.names)
        number = 0
        for batch in opened.iter_batches():
            for fields in batch.to_pylist():
                number += 1
                yield Line(number, _fields(fields))
            read(file.tell())
    except (ArrowException, OSError) as error:
        raise BadFile(f"Not a Parquet file, or one that is cut off: {error}.") from error


def _check(names: list[str]) -> None:
    index = next((name for name in names if name.startswith("__index_level_")), None)
    if index is not None:
        raise BadFile(
            f"The Parquet file has the column {index!r}, the index that pandas writes unless it is told "
            "`to_parquet(index=False)`: write it without."
        )
    check_columns("The Parquet file must have columns", names)


def _fields(fields: dict[str, Any]) -> dict[str, Any]:
    return fields if "hyperparameters" in fields else nested(fields)
