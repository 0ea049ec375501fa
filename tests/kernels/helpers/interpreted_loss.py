"""As interpreted.py, for implementations that use Triton where the device is a GPU, and here as well."""

from __future__ import annotations

import interpreted

from kernel_selector.kernels.operators.linear_cross_entropy import _aligned, _columns, _logits, _rows


def main() -> None:
    _logits.TRITON_DEVICES.add("cpu")
    # several blocks a row, and several chunks, at sizes that an interpreter can do
    _logits.BLOCK = 256
    _columns.chunk_columns, _rows.chunk_rows = lambda _: 200, lambda _: 13
    _aligned.chunk_rows = lambda *_: 13
    interpreted.main()


if __name__ == "__main__":
    main()
