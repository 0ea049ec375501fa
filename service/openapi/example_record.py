"""The example of a measurement in the OpenAPI document, as a line of JSON."""

from __future__ import annotations

from datetime import UTC, datetime

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import (
    Device,
    Environment,
    GateResult,
    Memory,
    Record,
    Status,
    Timing,
)

LINE = Record(
    problem=registry.operator("lstm").problem({"hidden": 512, "batch": 64}),
    implementation="torch_lstm",
    implementation_version="b87dda8d1e1f",
    device=Device(
        name="NVIDIA H200",
        kind="cuda",
        vendor="NVIDIA",
        host="Intel(R) Xeon(R) Processor x16",
        compute_capability=(9, 0),
        multiprocessors=132,
        memory_bytes=150109880320,
        copy_bytes_per_s=4.24e12,
        matmul_flops_per_s={"bfloat16": 7.9e14, "float32": 5.1e13},
        launch_us=4.76,
    ),
    environment=Environment(
        python="3.12.3",
        torch="2.11.0+cu130",
        triton="3.6.0",
        cuda="13.0",
        cudnn="91900",
        driver="580.159.04",
        threads=16,
        system="linux-x86_64",
    ),
    policy="quick",
    status=Status.OK,
    gate=GateResult(passed=True, worst_error_ratio=0.1),
    measured_at=datetime(2026, 5, 1, 12, tzinfo=UTC),
    forward=Timing(p20_ms=1.9, p50_ms=2.0, p80_ms=2.1, samples=9),
    forward_backward=Timing(p20_ms=5.9, p50_ms=6.0, p80_ms=6.1, samples=9),
    memory=Memory(peak_bytes=120_000_000, held_bytes=90_000_000, workspace_bytes=0),
).to_json()
