"""Small models of other kinds, for `selector inspect`: each function gives (model, example inputs)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

SEED = 0


class Residual(nn.Module):
    """Two convolutions around which their input goes, as in ResNet."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )
        self.activation = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        """x [B, C, height, width], to the same shape."""
        found: Tensor = self.activation(x + self.body(x))
        return found


class Adversarial(nn.Module):
    """A generator and the critic that judges what it makes; gives the generator's loss."""

    def __init__(self, noise: int, channels: int) -> None:
        super().__init__()
        self.generator = nn.Sequential(
            nn.ConvTranspose2d(noise, 2 * channels, 4, bias=False),
            nn.BatchNorm2d(2 * channels),
            nn.ReLU(inplace=True),
            nn.ConvTranspose2d(2 * channels, channels, 4, 2, 1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.ConvTranspose2d(channels, 3, 4, 2, 1),
            nn.Tanh(),
        )
        self.critic = nn.Sequential(
            nn.Conv2d(3, channels, 4, 2, 1),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(channels, 2 * channels, 4, 2, 1),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(2 * channels, 1, 4),
        )

    def forward(self, noise: Tensor) -> Tensor:
        """noise [B, Z, 1, 1], to the loss []."""
        found: Tensor = -self.critic(self.generator(noise)).mean()
        return found


def convolutional(
    batch: int = 8, channels: int = 16, blocks: int = 2, size: int = 32
) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A small residual network for pictures."""
    generator = torch.Generator().manual_seed(SEED)
    model = nn.Sequential(
        nn.Conv2d(3, channels, 3, padding=1, bias=False),
        nn.BatchNorm2d(channels),
        nn.ReLU(inplace=True),
        *(Residual(channels) for _ in range(blocks)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(channels, 10),
    )
    return _placed(model, (torch.randn(batch, 3, size, size, generator=generator),))


def adversarial(batch: int = 8, noise: int = 32, channels: int = 16) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A small generator with its critic."""
    generator = torch.Generator().manual_seed(SEED)
    return _placed(Adversarial(noise, channels), (torch.randn(batch, noise, 1, 1, generator=generator),))


def _placed(model: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """On the GPU where there is one."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return model.to(device).train(), tuple(one.to(device) for one in inputs)
