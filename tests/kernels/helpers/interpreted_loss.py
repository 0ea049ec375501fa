"""As interpreted.py, for implementations that use Triton where the device is a GPU, and here as well."""

from __future__ import annotations

import interpreted

from kernel_selector.kernels.operators.linear_cross_entropy import (
    _aligned_chunks,
    _column_chunks,
    _logits,
    _row_chunks,
)


def main() -> None:
    _logits.TRITON_DEVICES.add("cpu")
    # several blocks a row, and several chunks, at sizes that an interpreter can do
    _logits.BLOCK = 256
    _column_chunks.chunk_columns, _row_chunks.chunk_rows = lambda _: 200, lambda _: 13
    _aligned_chunks.chunk_rows = lambda *_: 13
    interpreted.main()


if __name__ == "__main__":
    main()
