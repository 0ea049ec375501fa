"""The paths of the service, by subject."""

from __future__ import annotations

from . import catalogue, choices, health

ROUTERS = (choices.router, catalogue.router, health.router)
