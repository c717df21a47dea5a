import io
import sys
from types import SimpleNamespace

import pytest
from rich.console import Console

from pmal._runtime import progress
from pmal._runtime.progress import Bars, Lines, Silent, choose_display


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=clock))
    return clock


@pytest.fixture
def terminal(clock):
    """Bars on a terminal that keeps what is written to it."""
    bars = Bars()
    bars.console = Console(
        file=io.StringIO(), force_terminal=True, width=100, get_time=clock, color_system=None
    )
    return bars


def advance_by(clock, advance, steps):
    for seconds, count in steps:
        clock.now += seconds
        advance(count)


def shown(terminal):
    """The last state of the bar."""
    return [line for line in terminal.console.file.getvalue().splitlines() if "/" in line][-1]


def test_silence(capfd):
    display = Silent()
    display.say("something")
    with display.stage("reading", 10, "images", done=3) as advance:
        advance(7)
    assert capfd.readouterr() == ("", "")


def test_lines_come_every_few_seconds_and_at_the_end(capsys, clock):
    with Lines(every=10.0).stage("reading train", 6000, "images") as advance:
        advance_by(clock, advance, [(4, 1000), (5, 500), (1, 500), (9, 1000), (1, 1000), (3, 2000)])
    out, error = capsys.readouterr()
    assert out == ""
    assert error.splitlines() == [
        "reading train: 2,000 of 6,000 images, 200 images/s, 20 s left",
        "reading train: 4,000 of 6,000 images, 200 images/s, 10 s left",
        "reading train: 6,000 images in 23.0 s (261 images/s)",
    ]


def test_nobody_waits_longer_than_ten_seconds_for_a_line(capsys, clock):
    with Lines().stage("reading", 100, "images") as advance:
        advance_by(clock, advance, [(9.9, 1)])
        assert capsys.readouterr().err == ""
        advance_by(clock, advance, [(0.2, 1)])
        assert capsys.readouterr().err == "reading: 2 of 100 images, 0.2 images/s, 8 min 15 s left\n"


def test_what_lay_behind_counts_for_the_place_but_not_for_the_speed(capsys, clock):
    with Lines(every=10.0).stage("training", 5000, "steps", done=4000) as advance:
        advance_by(clock, advance, [(10, 100), (5, 50)])
    assert capsys.readouterr().err.splitlines() == [
        "training: 4,100 of 5,000 steps, 10 steps/s, 1 min 30 s left",
        "training: 150 steps in 15.0 s (10 steps/s)",
    ]


def test_a_stage_in_which_nothing_was_left_to_do_says_nothing(capsys, clock):
    with Lines().stage("training", 100, "steps", done=100):
        clock.now += 60
    assert capsys.readouterr().err == ""


def test_a_stage_that_takes_no_time_has_a_finite_speed(capsys, clock):
    with Lines().stage("reading", 5, "images") as advance:
        advance(5)
    assert capsys.readouterr().err.startswith("reading: 5 images in 0.0 s (")


def test_a_stage_that_fails_does_not_claim_to_have_ended(capsys, clock):
    def fail():
        with Lines().stage("reading", 5, "images") as advance:
            advance(2)
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        fail()
    assert capsys.readouterr().err == ""


def test_lines_go_to_standard_error(capsys):
    Lines().say("3 images left out [see quarantine.json]")
    assert capsys.readouterr() == ("", "3 images left out [see quarantine.json]\n")


def test_bars_show_place_and_speed(terminal, clock):
    with terminal.stage("reading train", 2000, "images") as advance:
        advance_by(clock, advance, [(1, 250)] * 6)
    assert "reading train" in shown(terminal)
    assert "1,500/2,000" in shown(terminal)
    assert "250 images/s" in shown(terminal)
    assert "0:00:06" in shown(terminal), "the time that has passed"
    assert "0:00:02" in shown(terminal), "the time that is left"


def test_bars_resume_where_the_work_stopped(terminal, clock):
    with terminal.stage("training", 5000, "steps", done=4000) as advance:
        advance_by(clock, advance, [(1, 20)] * 5)
    assert "4,100/5,000" in shown(terminal)
    assert "20 steps/s" in shown(terminal)


def test_bars_without_a_speed_yet_name_the_unit(terminal):
    with terminal.stage("reading", 10, "images") as advance:
        advance(1)
    assert "1/10" in shown(terminal)
    assert "images" in shown(terminal)
    assert "/s" not in shown(terminal)


def test_what_bars_say_is_printed_as_it_is(terminal):
    text = "[red]a[/red] 20 % of /data/[b]/x.png " + "long " * 40 + "end"
    terminal.say(text)
    assert terminal.console.file.getvalue() == text + "\n"
    terminal.console = Console(
        file=io.StringIO(), force_terminal=True, color_system="standard", no_color=False
    )
    terminal.say(text)
    assert terminal.console.file.getvalue() == text + "\n", "nor are figures and paths colored"


def stage_output(quiet, capsys):
    with choose_display(quiet).stage("reading", 3, "images") as advance:
        advance(3)
    return capsys.readouterr().err


def test_the_display_follows_the_terminal(capsys, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    plain = stage_output(False, capsys)
    assert plain.startswith("reading: 3 images in ")
    assert "\x1b" not in plain
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert "\x1b[" in stage_output(False, capsys)
    assert stage_output(True, capsys) == ""
