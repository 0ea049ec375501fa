"""The routes of the REST API, by subject: requests come in, documents of `schemas/` go out."""

from __future__ import annotations

from . import catalogue, choices, corrections, health, jobs, measurements, page, planning

ROUTERS = (
    choices.router,
    planning.router,
    measurements.router,
    corrections.router,
    jobs.router,
    catalogue.router,
    health.router,
    page.router,
)
