"""One log, short whatever clients do, and in JSON where requests are in it."""

import json
import logging

from pmal.serving.http.service_log import ACCESS, LINES, JsonLines, Sparing


def record(message, name="asyncio", **more):
    found = logging.LogRecord(name, logging.ERROR, "", 0, message, None, None)
    found.__dict__.update(more)
    return found


def test_lines_of_a_kind_are_counted_when_there_are_many():
    now = [0.0]
    sparing = Sparing(lambda: now[0])
    assert sum(sparing.filter(record("accept failed")) for _ in range(1000)) == LINES
    assert sparing.filter(record("another"))
    assert all(sparing.filter(record("request", ACCESS.name)) for _ in range(1000))
    now[0] = 60.0
    last = record("accept failed")
    assert sparing.filter(last)
    assert last.getMessage() == f"accept failed ({1000 - LINES} such lines were left out)"


def test_every_line_is_an_object():
    line = json.loads(JsonLines().format(record('a "b"\nc')))
    assert (line["level"], line["message"]) == ("error", 'a "b"\nc')
    line = json.loads(JsonLines().format(record("request", fields={"status": 200, "path": "/é"})))
    assert (line["status"], line["path"], "message" in line) == (200, "/é", False)
