"""Bounds of a submitted record: how long texts and lists may be, and what no machine can have measured.

What is too long stays out with all that came with it, as a line that is no record does. What is impossible
is set aside: a person may know better.
"""

from __future__ import annotations

from collections.abc import Iterator

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device, Record, Status
from kernel_selector.kernels.contract.errors import shorten
from kernel_selector.kernels.contract.hyperparameter import DTYPE
from kernel_selector.kernels.contract.record import TIMINGS
from selector.selection.devices import contradiction, stands_for
from selector.selection.query import ASKED_REGIMES
from selector.text.units import format_bytes, format_ms

# far more than this package writes itself, whose longest reason among what ships has 353 characters
LONGEST_NAME, LONGEST_TEXT, MOST_SAMPLES = 200, 1000, 10_000
LONGEST_MS = 3_600_000.0  # candidates are stopped after minutes
LONGEST_US = 200.0  # of a launch or a barrier, which take 2 to 20
MOST_RATE = 1e18  # operations or bytes a second: a hundred times what the fastest device has
MOST_BYTES = 2**50
SIZES = ("memory_bytes", "l2_bytes", "shared_bytes_per_multiprocessor")
# of a GPU, which its driver and each probe of ours give: without them nothing is held against them
GIVEN = ("compute_capability", "multiprocessors", "memory_bytes", "copy_bytes_per_s", "launch_us")
# memory that a candidate may need beside its tensors, whose bytes are counted: workspaces of libraries and
# what a graph holds. Of what ships none needs more than 57 times its tensors beside 2 GiB. What runs out of
# memory with less than this has found a device in use
WORKSPACE_BYTES, WORKSPACE_RATIO = 2**31, 64


def too_long(record: Record) -> str | None:
    """Text or list of a record that is longer than any of ours, in words; None where all are shorter."""
    for name, text, most in _texts(record):
        if len(text) > most:
            return f"{name} has {len(text)} characters: expected {most} at most."
    for name in TIMINGS:
        timing = getattr(record, name)
        if timing is not None and len(timing.raw_ms) > MOST_SAMPLES:
            return f"{name}.raw_ms has {len(timing.raw_ms)} samples: expected {MOST_SAMPLES} at most."
    return None


def _texts(record: Record) -> Iterator[tuple[str, str, int]]:
    """Texts of a record by name, each with the most characters that it may have."""
    yield "reason", record.reason, LONGEST_TEXT
    yield "gate.detail", record.gate.detail, LONGEST_TEXT
    for name in ("implementation", "implementation_version", "policy"):
        yield name, getattr(record, name), LONGEST_NAME
    for owner in ("device", "environment"):
        for name, value in vars(getattr(record, owner)).items():
            if isinstance(value, str):
                yield f"{owner}.{name}", value, LONGEST_TEXT if name == "name" else LONGEST_NAME


def impossible_device(device: Device) -> str | None:
    """Property of a device that no device has, in words; None where all are possible."""
    name = device.name
    if not device.key or len(name) > LONGEST_NAME or not (name.isascii() and name.isprintable()):
        return f"a device {shorten(device.name)}, which no question can name: expected letters of ASCII"
    unknown = sorted(set(device.matmul_flops_per_s) - set(DTYPE.choices))
    if unknown:
        known = ", ".join(DTYPE.choices)
        return f"a {device.name} with a rate for {shorten(unknown[0])}: expected dtypes among {known}"
    if (named := stands_for(device)) is not None:
        return f"a device {name}, which stands for {named}: expected the name that its driver gives"
    limits = {
        "launch_us": (device.launch_us, LONGEST_US),
        "barrier_us": (device.barrier_us, LONGEST_US),
        "copy_bytes_per_s": (device.copy_bytes_per_s, MOST_RATE),
        **{name: (getattr(device, name), MOST_BYTES) for name in SIZES},
        **{
            f"matmul_flops_per_s[{dtype}]": (rate, MOST_RATE)
            for dtype, rate in device.matmul_flops_per_s.items()
        },
    }
    for name, (value, most) in limits.items():
        if value is not None and not 0 < value <= most:
            return f"a {device.name} with {name}={value:.3g}: expected more than 0 and {most:.3g} at most"
    if device.kind != "cuda":
        return None
    lacking = next((name for name in GIVEN if getattr(device, name) is None), None)
    if lacking is not None:
        return f"a {device.name} without {lacking}: expected it as the GPU was probed"
    found = contradiction(device)
    return None if found is None else f"a {device.name} whose figures contradict each other: {found}"


def unasked_regime(regime: str) -> str | None:
    """Objection to a regime that no question asks for, and nothing here measures in; None for others."""
    if regime in ASKED_REGIMES:
        return None
    return (
        f"of the regime {regime}, which no question asks for: expected {' or '.join(ASKED_REGIMES)}; "
        "CUDA graphs of a launched layer are times beside its own (graph_forward, graph_forward_backward)"
    )


def impossible_figures(record: Record, device: Device) -> str | None:
    """Figure of a record that no machine with the device can give, in words; None where all are possible."""
    for name in TIMINGS:
        timing = getattr(record, name)
        if timing is not None and timing.p80_ms > LONGEST_MS:
            return f"{name} of {format_ms(timing.p80_ms)}: expected {format_ms(LONGEST_MS)} at most"
    has = device.memory_bytes or MOST_BYTES
    if record.memory is not None:
        for name, size in vars(record.memory).items():
            if size is not None and size > has:
                return f"{name} of {format_bytes(size)}, where a {device.name} has {format_bytes(has)}"
        if record.memory.held_bytes > record.memory.peak_bytes:
            held, peak = record.memory.held_bytes, record.memory.peak_bytes
            return f"{format_bytes(held)} held, where {format_bytes(peak)} is the most at once"
    if record.status is Status.OUT_OF_MEMORY and device.memory_bytes is not None:
        return _fits(record, device.memory_bytes)
    return None


def _fits(record: Record, has: int) -> str | None:
    """Objection to running out of memory where a problem's tensors take next to none of it."""
    work = registry.implementation(record.problem.operator, record.implementation).work(record.problem)
    tensors = work.moved_bytes + work.saved_bytes
    if WORKSPACE_BYTES + WORKSPACE_RATIO * tensors > has:
        return None
    return f"ran out of {format_bytes(has)} of memory with tensors of {format_bytes(int(tensors))}"


def unknown_version(record: Record) -> str | None:
    """Objection to the version of a record's implementation, which is neither the one of this package nor an
    earlier one that does the same; None for a known one.
    """
    operator, name, version = record.problem.operator, record.implementation, record.implementation_version
    if registry.is_known_version(operator, name, version):
        return None
    return (
        f"{name} in a version {shorten(version)} that is unknown here, where it has "
        f"{registry.implementation(operator, name).version}: upgrade the service, then send the record again"
    )
