"""Placements in the words of Kubernetes, Slurm and Ray: data that they take as it is."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from kernel_selector.kernels.contract import Device
from selector.selection.devices import RAY_LABEL

from .placement import Placement, feasible

PRODUCT_LABEL = "nvidia.com/gpu.product"  # of NVIDIA's GPU feature discovery
DRIVER = "gpu.nvidia.com"  # NVIDIA's driver for dynamic resource allocation, and its device class
MOST_ALTERNATIVES = 8  # in a `firstAvailable` of Kubernetes
HEAVIEST = 100  # weight of a preference in Kubernetes


def product_label(device: Device) -> str:
    """The device's name as the value of a Kubernetes label."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", device.name).strip("-._")[:63]


def to_plain(rows: Iterable[Placement]) -> str:
    """A line for each device, best first: key, items per second, reason, with tabs between."""
    return "".join(
        "\t".join(
            (row.device.key, _number(row.throughput.items_per_s), " ".join(row.throughput.reason.split()))
        )
        + "\n"
        for row in rows
    )


def to_slurm(rows: Iterable[Placement]) -> str:
    """A constraint: the features of all kinds that fit, such as `h200|a100`. Raises NothingFits."""
    return "|".join(name.lower() for name in _models(rows)) + "\n"


def to_ray(rows: Iterable[Placement]) -> dict[str, Any]:
    """Options of a task or actor: the best kind, and the others to fall back to. Raises NothingFits."""
    best, *others = _models(rows)
    options: dict[str, Any] = {"num_gpus": 1, "label_selector": {RAY_LABEL: best}}
    if others:
        options["fallback_strategy"] = [{"label_selector": {RAY_LABEL: name}} for name in others]
    return options


def to_affinity(rows: Iterable[Placement]) -> dict[str, Any]:
    """The `affinity` of a pod: only kinds that fit, preferred by their speed. Raises NothingFits."""
    found = feasible(rows)
    fastest = min(row.throughput.time_ms or 0.0 for row in found)
    weights = {
        product_label(row.device): max(1, round(HEAVIEST * fastest / (row.throughput.time_ms or 1.0)))
        for row in found
    }
    return {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [_product(list(weights))]
            },
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": weight, "preference": _product([label])} for label, weight in weights.items()
            ],
        }
    }


def to_resource_claim(rows: Iterable[Placement], name: str = "selected-gpu") -> dict[str, Any]:
    """A ResourceClaimTemplate (`resource.k8s.io/v1`) whose alternatives are the ranking.

    Kubernetes takes at most eight, so the rest is left out. Raises NothingFits.
    """
    alternatives = []
    for index, row in enumerate(feasible(rows)[:MOST_ALTERNATIVES]):
        conditions = [f'device.attributes["{DRIVER}"].productName == "{_quoted(row.device.name)}"']
        if row.throughput.peak_high_bytes:
            least = -(-row.throughput.peak_high_bytes // 2**20)
            conditions.append(f'device.capacity["{DRIVER}"].memory.compareTo(quantity("{least}Mi")) >= 0')
        alternatives.append(
            {
                "name": f"choice-{index + 1}",
                "deviceClassName": DRIVER,
                "selectors": [{"cel": {"expression": " && ".join(conditions)}}],
            }
        )
    request = {"name": "gpu", "firstAvailable": alternatives}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }


def _models(rows: Iterable[Placement]) -> list[str]:
    """What clusters call the kinds that fit, best first, each once."""
    return list(dict.fromkeys(row.device.model for row in feasible(rows)))


def _product(labels: Sequence[str]) -> dict[str, Any]:
    return {"matchExpressions": [{"key": PRODUCT_LABEL, "operator": "In", "values": list(labels)}]}


def _quoted(name: str) -> str:
    return name.replace("\\", "\\\\").replace('"', '\\"')


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:.6g}"
