"""Draws progress events on stderr: a bar with the time left in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
)
from rich.text import Text

from . import output

if TYPE_CHECKING:
    from selector.profiling.profile import ProfilingFinished, ProfilingStarted

LINE_EVERY_S = 15.0


class ProgressView:
    """Shows what is being done and how the candidates fared. A context manager."""

    def __init__(self) -> None:
        self.console = output.err()
        self.counts: Counter[str] = Counter()
        self._spoke = 0.0
        self._task: TaskID | None = None
        self._bar = _Bar(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            _Left(),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )

    def __enter__(self) -> ProgressView:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        """A line that stays."""
        self.console.print(text)

    def step(self, what: str, index: int, count: int, *, detail: str, left_s: float | None = None) -> None:
        """Step `index` (from 1) of `count` begins: `detail` says with what."""
        until = None if left_s is None else time.monotonic() + left_s
        if self._task is None:
            self._task = self._bar.add_task(what, total=count, until=until)
        self._bar.update(self._task, description=what, total=count, completed=index - 1, until=until)
        self._bar.caption = f"  {detail}\n  {self._counted()}"
        if not self.console.is_terminal and time.monotonic() - self._spoke > LINE_EVERY_S:
            self._spoke = time.monotonic()
            left = f"{output.span(left_s)} left" if left_s is not None else ""
            self.say(", ".join(part for part in (f"{what} {index} of {count}", left, detail) if part))

    def amount(self, done: int, total: int) -> None:
        """Progress of the step that began with `busy`: `done` of `total`."""
        if self._task is not None:
            self._bar.update(self._task, total=total, completed=done)

    def busy(self, what: str) -> None:
        """One step of unknown length begins."""
        self.finish()
        self._task = self._bar.add_task(what, total=None, until=None)
        if not self.console.is_terminal:
            self.say(f"{what} ...")

    def finish(self) -> None:
        """The current step is over."""
        self._bar.caption = ""
        if self._task is not None:
            self._bar.remove_task(self._task)
            self._task = None

    def show(self, event: object) -> None:
        """Draw one event of profiling; others are ignored."""
        from selector.profiling.profile import (
            CandidateMeasured,
            ProblemStarted,
            ProfilingFinished,
            ProfilingStarted,
        )

        if isinstance(event, ProfilingStarted):
            self.finish()
            self.say(_started(event))
            if event.warning:
                self.say(f"[yellow]{escape(event.warning)}[/]")
        elif isinstance(event, ProblemStarted):
            detail = output.problem_text(event.problem.as_dict)
            candidates = f"{detail}: {output.number_of(len(event.implementations), 'candidate')}"
            self.step("Measuring", event.index, event.count, detail=candidates, left_s=event.left_s)
        elif isinstance(event, CandidateMeasured):
            self.counts[event.record.status.value] += 1
        elif isinstance(event, ProfilingFinished):
            self.finish()
            if event.measured or event.skipped or event.remaining:
                self.say(_finished(event))

    def _counted(self) -> str:
        return output.counted(self.counts)


class _Left(ProgressColumn):
    """The time left, counting down between the events that correct it."""

    def render(self, task: Task) -> Text:
        until = task.fields["until"]
        return Text("" if until is None else f"{output.span(max(0.0, until - time.monotonic()))} left")


class _Bar(Progress):
    """rich's bar with a caption below: a caption in the same line would not fit 80 columns."""

    caption = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        if self.caption:
            yield Text.from_markup(self.caption, style="dim", overflow="ellipsis")


def _started(event: ProfilingStarted) -> str:
    if not event.problems:
        return (
            f"Nothing to measure again on {escape(event.device.name)}: what was measured there still holds."
        )
    todo = event.problems - event.skipped
    known = f", {event.skipped} measured already" if event.skipped else ""
    budget = f", at most {output.span(event.budget_s)}" if event.budget_s and todo else ""
    return (
        f"[bold]Profiling[/] {', '.join(event.operators)} on {event.device.name}: "
        f"{output.number_of(event.problems, 'problem')}{known}{budget}"
    )


def _finished(event: ProfilingFinished) -> str:
    if not event.measured and not event.remaining:
        return "  nothing left to measure"
    counted = output.counted(event.statuses)
    more = f", about {output.span(event.needed_s)} more at this pace" if event.needed_s else ""
    left = f"; [yellow]{event.remaining} left out{more}[/]" if event.remaining else ""
    measured = output.number_of(event.measured, "problem")
    lines = [f"  {measured} measured in {output.span(event.seconds)}: {counted}{left}"]
    for operator, wins in event.winners.items():
        best = ", ".join(f"{name} {count}" for name, count in wins.items())
        lines.append(f"  fastest, {operator}: {best or 'nothing is measured'}")
    return "\n".join(lines)
