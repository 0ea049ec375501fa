"""The densities behind ReLUs: what is counted, and what storing takes."""

from __future__ import annotations

import pytest
import torch

from benchmarks.kernels import relu_density


def test_bytes_of_each_form() -> None:
    half = relu_density.stored_bytes(0.5)
    assert half == {"kept": 2, "csr": pytest.approx(1.5156), "bitmap": 1.125, "mask": 0.125}
    assert relu_density.stored_bytes(0.67)["csr"] > 2  # nothing is saved from two thirds on


def test_every_map_is_counted() -> None:
    torch.manual_seed(0)
    found = relu_density.densities(relu_density.vgg(), torch.randn(4, 3, 32, 32))
    assert len(found) == len(relu_density.WIDTHS)
    assert all(0.3 < one["density"] < 0.7 for one in found)
    assert found[0]["elements"] == 32 * 32 * 32
