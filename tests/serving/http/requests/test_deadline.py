"""A client has its seconds, and is not blamed for those in which this process stood still."""

import asyncio

import pytest

from pmal.serving.http.requests.deadline import LATE_SECONDS, Deadline, within


class Clock:
    """A loop of timers alone, whose time is set."""

    def __init__(self):
        self.now, self.timers = 0.0, []

    def time(self):
        return self.now

    def call_at(self, when, call):
        timer = Timer(when, call)
        self.timers.append(timer)
        return timer

    def go_to(self, now):
        """What is due is called then, and not before."""
        self.now = now
        due = [timer for timer in self.timers if timer.when <= now]
        self.timers = [timer for timer in self.timers if timer.when > now]
        for timer in due:
            timer.run()


class Timer:
    def __init__(self, when, call):
        self.when, self._call = when, call

    def cancel(self):
        self._call = lambda: None

    def run(self):
        self._call()


def test_it_ends_when_the_seconds_are_over():
    clock, ends = Clock(), []
    Deadline(10.0, lambda: ends.append(clock.now), clock)
    clock.go_to(9.9)
    assert ends == []
    clock.go_to(10.1)
    clock.go_to(99.0)
    assert ends == [10.1]


def test_a_process_that_stood_still_reads_first_what_has_come():
    clock, ends = Clock(), []
    kept = Deadline(10.0, lambda: ends.append(clock.now), clock)
    clock.go_to(25.0)
    assert ends == []
    kept.cancel()  # the rest was there
    clock.go_to(99.0)
    assert ends == []


def test_a_client_from_which_nothing_has_come_is_let_go_then():
    clock, ends = Clock(), []
    Deadline(10.0, lambda: ends.append(clock.now), clock)
    clock.go_to(25.0)
    clock.go_to(25.0 + LATE_SECONDS)
    assert ends == [25.0 + LATE_SECONDS]


def test_a_block_has_its_seconds():
    async def slow():
        async with within(0.01):
            await asyncio.Event().wait()

    async def quick():
        async with within(60.0):
            await asyncio.sleep(0)
        return [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]

    with pytest.raises(TimeoutError):
        asyncio.run(slow())
    assert asyncio.run(quick()) == []
