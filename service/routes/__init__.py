"""The paths of the service, by subject."""

from __future__ import annotations

from . import catalogue, choices, health, measurements, page, planning

ROUTERS = (choices.router, planning.router, measurements.router, catalogue.router, health.router, page.router)
