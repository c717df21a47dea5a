"""What passes through a watched display, and what is noted of it."""

import contextlib

import pytest

from pmal._runtime.files import read_events
from pmal.benchmark.watching import Named, Watched, stage_seconds


class Seen:
    """A display that keeps everything."""

    def __init__(self):
        self.events = []

    @contextlib.contextmanager
    def stage(self, name, total, unit, done=0):
        self.events.append((name, total, unit, done))
        yield lambda n: self.events.append(n)
        self.events.append("end")

    def say(self, text):
        self.events.append(text)


def test_everything_is_passed_on_and_stages_are_noted(tmp_path):
    seen, notes = Seen(), tmp_path / "notes.jsonl"
    watched = Watched(seen, notes, lambda: seen.events.append("before"))
    with watched.stage("training", 9, "steps", 4) as advance:
        advance(2)
        advance(3)
    watched.say("done")
    assert seen.events == ["before", ("training", 9, "steps", 4), 2, 3, "end", "done"]
    [noted] = read_events(notes)
    assert noted.pop("seconds") >= 0
    assert noted == {"stage": "training", "done": 5, "total": 9, "unit": "steps"}


def test_a_stage_that_is_broken_off_is_noted_too(tmp_path):
    notes = tmp_path / "notes.jsonl"

    def break_off():
        with Watched(Seen(), notes, lambda: None).stage("training", 9, "steps") as advance:
            advance(2)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        break_off()
    assert [(noted["stage"], noted["done"]) for noted in read_events(notes)] == [("training", 2)]


def test_the_seconds_of_a_stage_are_those_of_all_attempts():
    notes = [
        {"stage": "training", "seconds": 2.0},
        {"attempt": 2.5},
        {"stage": "training", "seconds": 3.0},
        {"stage": "mining", "seconds": 0.5},
    ]
    assert stage_seconds(notes) == {"training": 5.0, "mining": 0.5}


def test_lines_of_several_cells_say_which_they_are_of():
    seen = Seen()
    named = Named(seen, "cell 2")
    with named.stage("training", 9, "steps", 4) as advance:
        advance(5)
    named.say("done")
    assert seen.events == [("cell 2: training", 9, "steps", 4), 5, "end", "cell 2: done"]
