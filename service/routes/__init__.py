"""The paths of the service, by subject."""

from __future__ import annotations

from . import catalogue, choices, health, planning

ROUTERS = (choices.router, planning.router, catalogue.router, health.router)
