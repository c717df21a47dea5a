"""`pmal serve` as an operator meets it: a process with signals, and mistakes told in one line."""

import importlib.util
import io
import json
import re
import signal
import subprocess
import sys
import threading

import pytest
from PIL import Image

from pmal.rejection.bundle.saving import save_model
from pmal.rejection.model import Rule
from tests.serving.http_service import call as http_call
from tests.serving.http_service import form, png, predict
from tests.serving.tiny_model import make_model
from tests.support.command_line import assert_one_line_error
from tests.support.hanging import HANGING, wait_for

pytestmark = pytest.mark.slow


@pytest.fixture
def run(tmp_path):
    save_model(tmp_path / "run" / "model", make_model())
    return tmp_path / "run"


def start(*words):
    """The process, and the port that it listens on."""
    command = [sys.executable, "-m", "pmal", "serve", *map(str, words), "--port", "0", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    about = json.loads(process.stdout.readline())
    assert about["url"].startswith("http://127.0.0.1:")
    return process, int(about["url"].rstrip("/").rsplit(":", 1)[1])


def fingerprint(port):
    return http_call(port, "GET", "/v1/model").body["fingerprint"]


def test_reload_and_end_by_signals(run):
    # A long wait for company keeps requests in flight while the signal comes.
    process, port = start(run, "--batch", 4, "--batch-wait", 700)
    try:
        first = fingerprint(port)
        (run / "model" / "model.json").write_text("{}")
        process.send_signal(signal.SIGHUP)
        assert "the old model continues to answer" in process.stderr.readline()
        assert http_call(port, "GET", "/readyz").status == 200
        assert fingerprint(port) == first

        (run / "model").rename(run.parent / "broken")
        save_model(run / "model", make_model(Rule("logit"), prototypes=False))
        process.send_signal(signal.SIGHUP)
        wait_for(lambda: fingerprint(port) != first)

        replies = []
        client = threading.Thread(target=lambda: replies.append(predict(port, *form(("a.png", png(0))))))
        client.start()
        # On a busy machine it may have been answered before we look.
        wait_for(lambda: replies or b"pmal_images_waiting 1.0" in http_call(port, "GET", "/metrics").body)
        process.send_signal(signal.SIGTERM)
        client.join(HANGING)
        assert [reply.status for reply in replies] == [200]
        out, error = process.communicate(timeout=HANGING)
        assert (process.returncode, out) == (0, "")
        assert error.startswith("reloaded run: ")
        assert error.count("\n") == 1
    finally:
        process.kill()
        process.communicate()


def test_the_memory_of_large_images_is_given_back(run):
    canvas = Image.new("RGBA", (5000, 5000))
    body = io.BytesIO()
    canvas.save(body, "PNG", compress_level=1)
    process, port = start(run)
    try:
        before = resident_bytes(port)
        for _ in range(3):
            assert predict(port, body.getvalue()).status == 200
        assert resident_bytes(port) < before + 100e6
    finally:
        process.kill()
        process.communicate()


def resident_bytes(port):
    text = http_call(port, "GET", "/metrics").body.decode()
    return float(re.search("^process_resident_memory_bytes (.*)$", text, re.MULTILINE)[1])


def test_mistakes_are_told_in_one_line(run, tmp_path, call, monkeypatch):
    monkeypatch.setattr(
        "pmal.serving.http.server.leave_a_core", lambda: None
    )  # the tests after this one, too
    assert_one_line_error(call("serve", tmp_path / "gone", "--port", 0), 3, "gone")
    assert_one_line_error(
        call("serve", run, "--port", 0, "--score", "distanse"), 2, "did you mean 'distance'?"
    )
    assert_one_line_error(call("serve", run, "--queue", 2), 2, "--max-images")
    for host in ("256.1.1.1", "a..b"):
        assert_one_line_error(call("serve", run, "--host", host), 2, "--host")
    for option in ("--max-body", "--max-pixels", "--batch-wait"):
        code, _, error = call("serve", run, "--port", 0, option, "inf")
        assert code == 2
        assert option in error
    save_model(tmp_path / "bare", make_model(Rule("logit"), prototypes=False, calibrated=False))
    assert_one_line_error(call("serve", tmp_path / "bare", "--port", 0), 2, "no threshold")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert_one_line_error(call("serve", run), 2, "pip install 'pmal[serve]'")
