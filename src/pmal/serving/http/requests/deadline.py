"""A deadline for what a client sends, which does not count the seconds that this process itself was late.

A process that got no processor for a while finds its timers run out before it reads what has come meanwhile.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

LATE_SECONDS = 0.5
"""A timer that runs so much late says that the process stood still, not that the client did."""


class Deadline:
    """Calls a function after some seconds, unless it is canceled."""

    def __init__(
        self, seconds: float, give_up: Callable[[], object], loop: asyncio.AbstractEventLoop
    ) -> None:
        self._give_up, self._loop = give_up, loop
        self._start(seconds)

    def cancel(self) -> None:
        """Call nothing any more."""
        self._timer.cancel()

    def _start(self, seconds: float) -> None:
        self._due = self._loop.time() + seconds
        self._timer = self._loop.call_at(self._due, self._end)

    def _end(self) -> None:
        if self._loop.time() - self._due > LATE_SECONDS:
            self._start(LATE_SECONDS)  # for reading what has come
        else:
            self._give_up()


@asynccontextmanager
async def within(seconds: float) -> AsyncIterator[None]:
    """Raise TimeoutError in a block that takes longer, as `asyncio.timeout` does."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(None) as limit:
        deadline = Deadline(seconds, lambda: limit.reschedule(loop.time()), loop)
        try:
            yield
        finally:
            deadline.cancel()
