"""Warming of a process: the measurements of each operator, read before anybody asks.

A first question about an operator takes up to a second, and cluster schedulers wait for half of one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from threading import Event, Thread

from fastapi.concurrency import run_in_threadpool

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import SelectorError
from selector import Query, Selector

from ..logs import LOGGER

MOST_WAIT_S = 1.0  # for the question at hand when the service ends: quiet cores take half of it


def never() -> bool:
    """The answer of a caller that does not stop before the end: always False."""
    return False


def warm_up(selector: Selector, stopped: Callable[[], bool] = never) -> None:
    """Questions to a selector about each operator on each device that it was measured on, one by one.

    Parameters
    ----------
    selector
        Selector whose process is warmed up: what ships is read once for all selectors of a process, and of
        its own database what changes alone is read again. Imported operators are not asked about.
    stopped
        Whether to leave out the rest, asked before each question.

    What cannot be read is no reason to stop the service: it is logged, and `/readyz` says why.
    """
    devices = dict.fromkeys(device["key"] for device in selector.devices() if device["measured"])
    trouble = [selector.unusable] if selector.unusable else []
    try:
        measured = selector.measured()
    except SelectorError as error:
        measured, trouble = set(), [*trouble, str(error)]
    for name, operator in registry.operators().items():
        for key in devices:
            if stopped():
                return
            if (name, key) not in measured:
                continue
            query = Query(operator=name, hyperparameters=operator.examples[0], device=key)
            try:
                (found,) = selector.choose_each([query], kept=False)
            except SelectorError as error:  # of reading it again after a change
                found = error
            if isinstance(found, SelectorError):
                trouble.append(str(found))
    for reason in dict.fromkeys(trouble):
        LOGGER.warning("not warmed up: %s", reason)


@asynccontextmanager
async def warming(selector: Selector) -> AsyncIterator[None]:
    """A block beside which a selector is warmed up by a thread of its own, which ends with the block."""
    ended = Event()
    thread = Thread(target=warm_up, args=(selector, ended.is_set), name="warming", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        # an interpreter that ends under a thread which computes may crash
        await run_in_threadpool(thread.join, MOST_WAIT_S)
