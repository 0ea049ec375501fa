"""What layers take longer in a model than alone: matrix products do, on devices of which it is known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device
from selector.planning.layer_costs import Figures
from selector.planning.pace import AT_THE_CLOCK, LONGER, in_a_model

H200 = Device(name="NVIDIA H200", kind="cuda", matmul_flops_per_s={"bfloat16": 8e14})
FIGURES = Figures(
    device_ms=0.5,
    forward_ms=0.2,
    host_ms=0.1,
    held_bytes=0,
    peak_bytes=0,
    kept_argument_bytes=0,
    source="exact",
)


def test_products_take_longer_and_what_moves_bytes_does_not() -> None:
    sizes = {"rows": 32768, "dtype": "bfloat16", "mode": "training"}
    linear = registry.operator("linear").problem({**sizes, "in_features": 1024})
    found = in_a_model(FIGURES, linear, "torch_linear", H200)
    products_ms = 6 * 32768 * 1024**2 / 8e14 * 1e3
    assert found.device_ms == pytest.approx(0.5 + LONGER[H200.key] * products_ms, rel=1e-3)
    assert found.forward_share == pytest.approx(FIGURES.forward_share)
    assert found.host_ms == FIGURES.host_ms
    norm = registry.operator("layer_norm").problem({**sizes, "hidden": 1024})
    assert in_a_model(FIGURES, norm, "torch_layer_norm", H200).device_ms == pytest.approx(0.5, rel=1e-2)


def test_attention_that_never_writes_its_weights_takes_longer_as_a_whole() -> None:
    sizes = {"batch": 8, "heads": 16, "seq": 512, "head_dim": 64, "dtype": "bfloat16", "mode": "training"}
    attention = registry.operator("attention").problem(sizes)
    for name in AT_THE_CLOCK:
        found = in_a_model(FIGURES, attention, name, H200)
        assert found.device_ms == pytest.approx(0.5 * (1 + LONGER[H200.key]))
    written = in_a_model(FIGURES, attention, "written_out", H200)
    products_ms = registry.implementation("attention", "written_out").work(attention).flops / 8e14 * 1e3
    assert products_ms < 0.5
    assert written.device_ms == pytest.approx(0.5 + LONGER[H200.key] * products_ms)


def test_the_names_of_attention_are_those_of_implementations() -> None:
    assert set(AT_THE_CLOCK) <= set(registry.implementations("attention"))


def test_no_layer_takes_longer_than_if_it_were_all_products_and_other_devices_are_as_measured() -> None:
    sizes = {"rows": 2**20, "in_features": 4096, "dtype": "bfloat16", "mode": "training"}
    large = registry.operator("linear").problem(sizes)
    found = in_a_model(FIGURES, large, "torch_linear", H200)
    assert found.device_ms == pytest.approx(0.5 * (1 + LONGER[H200.key]))
    assert in_a_model(FIGURES, large, "torch_linear", replace(H200, name="NVIDIA H100 PCIe")) == FIGURES
    assert in_a_model(FIGURES, large, "torch_linear", replace(H200, matmul_flops_per_s={})) == FIGURES
