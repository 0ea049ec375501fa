"""The page, put together: its sections, and the HTML that they become."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from kernel_selector.kernels import registry
from selector import Selector

from ..jobs import JobsCache
from ..problem_details import reason
from . import explained, heat_map, sections
from .coverage import Coverage, CoverageCache
from .question import Question, parse
from .sections import SectionError, guarded

PACKAGE = "kernel_selector.service"
UNITS = (("day", 86400), ("hour", 3600), ("minute", 60))


@dataclass(frozen=True)
class Sources:
    """Data sources of the page."""

    selector: Selector
    coverage: CoverageCache
    jobs: JobsCache

    @classmethod
    def of(cls, selector: Selector) -> Sources:
        """Sources from a selector's database, read on first use."""
        return cls(selector, CoverageCache(selector), JobsCache(selector))


def render(
    sources: Sources, parameters: Iterable[tuple[str, str]], scopes: Collection[str]
) -> tuple[int, str]:
    """The status and the HTML of the page for the (name, value) pairs of its address and the asker's scopes.

    A fault of one section is said there, and gives its status to the page; the others are shown all the same.
    """
    selector = sources.selector
    rows = guarded(sources.coverage.rows)
    covered = [] if isinstance(rows, SectionError) else rows
    context: dict[str, Any] = {"coverage": rows, "state": guarded(selector.status)}
    context |= _shown(selector, covered, guarded(lambda: parse(parameters)))
    context["jobs"], context["scopes"] = guarded(sources.jobs.jobs), scopes
    context["models"] = guarded(lambda: sections.models(selector))
    context["operators"] = list(registry.operators())
    faults = [value.status for value in context.values() if hasattr(value, "status")]
    return max(faults, default=200), _templates().get_template("page.html").render(context)


def _shown(selector: Selector, rows: list[Coverage], question: Question | SectionError) -> dict[str, Any]:
    """What the parameters ask for; of an unknown operator its form alone, of unknown parameters nothing."""
    nothing: dict[str, Any] = {"fault": None, "operator_form": None, "winners": None, "choice": None}
    default = sections.subject(Question(), rows)
    if isinstance(question, SectionError):
        return nothing | {"about": default, "fault": question}
    about = guarded(lambda: sections.subject(question, rows))
    if isinstance(about, SectionError):
        wrong = sections.operator_form(question.plain["operator"], error=about)
        return nothing | {"about": default, "operator_form": wrong}
    return nothing | {
        "about": about,
        "operator_form": sections.operator_form(about.operator),
        "winners": guarded(lambda: heat_map.winners(selector, question, about, rows)),
        "choice": guarded(lambda: explained.section(selector, question, about)),
    }


@cache
def _templates() -> Environment:
    # every value is escaped, whatever it is: names come out of records that others have sent
    made = Environment(
        loader=PackageLoader(PACKAGE, "pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters |= {"age": age, "moment": moment, "instant": datetime.fromisoformat, "reason": reason}
    return made


def age(when: datetime) -> str:
    """Age of a time, in the largest unit that fits."""
    seconds = (datetime.now(UTC) - when).total_seconds()
    for unit, size in UNITS:
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {unit}{'' if count == 1 else 's'} ago"
    return "just now" if seconds >= 0 else "in the future"


def moment(when: datetime) -> str:
    """A moment to the minute, in UTC."""
    return f"{when.astimezone(UTC):%Y-%m-%d %H:%M}"
