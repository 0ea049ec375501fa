"""Devices as plain data, for what implementations say of a problem on them: none need be here."""

from kernel_selector.kernels.contract import Device

CPU = Device(name="a processor", kind="cpu", multiprocessors=2, memory_bytes=8 * 2**30)
H200 = Device(
    name="NVIDIA H200",
    kind="cuda",
    vendor="NVIDIA",
    compute_capability=(9, 0),
    multiprocessors=132,
    memory_bytes=150_754_820_096,
    l2_bytes=60 * 2**20,
    shared_bytes_per_multiprocessor=233_472,
)
T4 = Device(name="T4", kind="cuda", compute_capability=(7, 5))  # too old for Triton's kernels in bfloat16
