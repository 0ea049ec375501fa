"""Turns at the processor: what is worked out anew is worked out one at a time for each who asks.

Threads that compute share the processor with the event loop, which answers what is known: the more of them,
the longer each of its answers takes, and side by side they are no faster than one after the other.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from fastapi import Request

LONGEST_S = 0.25  # of a turn: what takes longer waits for a database, and nobody needs to wait with it


class Turns:
    """Turns by asker, the name of a token: new questions wait for those of the same one, in their order."""

    def __init__(self) -> None:
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # names of valid tokens: few

    @asynccontextmanager
    async def of(self, asker: str) -> AsyncIterator[None]:
        """Wait for the asker's turn, which ends with the block, or after LONGEST_S while that goes on."""
        lock, has_ended = self._locks[asker], False

        def end() -> None:
            nonlocal has_ended
            if not has_ended:
                has_ended = True
                lock.release()

        await lock.acquire()
        timer = asyncio.get_running_loop().call_later(LONGEST_S, end)
        try:
            yield
        finally:
            timer.cancel()
            end()


def taking_turn(request: Request) -> AbstractAsyncContextManager[None]:
    """Turn of who makes a request."""
    turns: Turns = request.app.state.turns
    return turns.of(request.scope.get("author", ""))


async def turn(request: Request) -> AsyncIterator[None]:
    """The same for as long as a route answers, as a dependency of those that compute."""
    async with taking_turn(request):
        yield
