"""The paths of the service, by subject."""

from __future__ import annotations

from . import catalogue, choices, health, jobs, measurements, page, planning

ROUTERS = (
    choices.router,
    planning.router,
    measurements.router,
    jobs.router,
    catalogue.router,
    health.router,
    page.router,
)
