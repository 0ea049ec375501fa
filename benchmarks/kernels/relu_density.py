"""Density of feature maps behind a ReLU, and what storing them sparsely would save (Gist's SSDC).

    python -m benchmarks.kernels.relu_density
    python -m benchmarks.kernels.relu_density --smoke

A VGG of eight convolutions learns ten classes of generated textures on the CPU; after some steps the share
of elements that are not zero is counted behind every ReLU. Densities do not depend on the device, and
bytes follow from them: a map kept in bfloat16, as values with a byte of column index (CSR over narrow
blocks), as a bitmap with packed values, or as the one bit an element that ReLU's own backward pass needs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.common.arguments import add_result_arguments, result_folder
from benchmarks.common.result import write_result

WIDTHS = (32, 32, 64, 64, 128, 128, 256, 256)
CLASSES, IMAGE = 10, 32
AFTER = (0, 50, 200)
VALUE, INDEX, BIT = 2, 1, 1 / 8  # bytes of an element, of its column, and of its place in a bitmap


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, count, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add_result_arguments(parser, smoke="two steps", subject="")
    options = parser.parse_args(arguments)
    after = (0, 2) if options.smoke else AFTER
    folder = result_folder(options, "density")
    torch.manual_seed(0)
    network, data = vgg(), Textures()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.02, momentum=0.9)
    found: list[dict[str, Any]] = []
    loss = torch.tensor(0.0)
    for step in range(after[-1] + 1):
        images, labels = data.batch(64)
        if step in after:
            found.append({"steps": step, "loss": round(loss.item(), 3), "maps": densities(network, images)})
            print(f"after {step} steps: " + ", ".join(f"{one['density']:.2f}" for one in found[-1]["maps"]))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(network(images), labels)
        loss.backward()
        optimizer.step()
    payload = {"seed": 0, "batch": 64, "bytes_per_element": "bfloat16", "after": found}
    print(write_result("relu_density", payload, torch_device="cpu", folder=folder))
    return 0


class Textures:
    """Images of ten classes: a pattern of each, shifted at random, in noise."""

    def __init__(self) -> None:
        self._patterns = torch.randn(CLASSES, 3, IMAGE, IMAGE)

    def batch(self, count: int) -> tuple[Tensor, Tensor]:
        """Images [count, 3, IMAGE, IMAGE] and labels [count]."""
        labels = torch.randint(CLASSES, (count,))
        shifts = torch.randint(IMAGE, (count,)).tolist()
        shifted = [self._patterns[one].roll(by, 2) for one, by in zip(labels.tolist(), shifts, strict=True)]
        return torch.stack(shifted) + torch.randn(count, 3, IMAGE, IMAGE), labels


def vgg() -> nn.Sequential:
    """Convolution, batch norm, ReLU, and a pool behind every second of them."""
    layers: list[nn.Module] = []
    features = 3
    for place, width in enumerate(WIDTHS):
        layers += [nn.Conv2d(features, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
        if place % 2:
            layers.append(nn.MaxPool2d(2))
        features = width
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(features * (IMAGE // 16) ** 2, CLASSES))


@torch.no_grad()
def densities(network: nn.Sequential, images: Tensor) -> list[dict[str, Any]]:
    """Behind each ReLU: elements an image, density, and bytes an element in each form."""
    found = []
    x = images
    for layer in network:
        x = layer(x)
        if isinstance(layer, nn.ReLU):
            density = round(float((x != 0).float().mean()), 4)
            found.append({"elements": x[0].numel(), "density": density, "bytes": stored_bytes(density)})
    return found


def stored_bytes(density: float) -> dict[str, float]:
    """Bytes an element of a map; row pointers of CSR, 4 bytes for 256 elements, are counted too."""
    return {
        "kept": VALUE,
        "csr": round((VALUE + INDEX) * density + 4 / 256, 4),
        "bitmap": round(VALUE * density + BIT, 4),
        "mask": BIT,
    }


if __name__ == "__main__":
    sys.exit(main())
