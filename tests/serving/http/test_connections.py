"""Clients that keep a service waiting, or send what is not HTTP: everybody else is answered all the same."""

import contextlib
import json
import resource
import signal
import socket
import subprocess
import sys

import pytest

from pmal.rejection.bundle.saving import save_model
from pmal.serving.http import connections as http_connections
from pmal.serving.http.connections import Connections
from pmal.serving.http.requests.upload import Limits
from tests.serving.http_service import call, form, gated_model, png, predict, running_model
from tests.serving.tiny_model import make_model
from tests.support.hanging import HANGING, wait_for

HEAD = b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"
FILES = 192


def connect(port, sent=b"", source="127.0.0.1"):
    client = socket.create_connection(("127.0.0.1", port), HANGING, (source, 0))
    client.sendall(sent)
    return client


def reply_of(client):
    """Status and JSON of the answer after which the connection ends."""
    text = b"".join(iter(lambda: client.recv(65536), b""))
    head, _, body = text.partition(b"\r\n\r\n")
    assert b"content-type: application/json" in head.lower(), text
    assert b"x-content-type-options: nosniff" in head.lower()
    return int(head.split()[1]), json.loads(body)["error"]


@contextlib.contextmanager
def process(tmp_path, *options):
    """The port of a service that may open few files, and what it wrote to standard error afterwards."""
    save_model(tmp_path / "model", make_model())
    command = [
        sys.executable,
        "-m",
        "pmal",
        "serve",
        str(tmp_path / "model"),
        "--port",
        "0",
        "--json",
        *options,
    ]
    few = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES))  # noqa: E731
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, preexec_fn=few) as running,
    ):
        try:
            yield int(json.loads(running.stdout.readline())["url"].rstrip("/").rsplit(":", 1)[1])
            running.send_signal(signal.SIGTERM)
            assert running.wait(HANGING) == 0
        finally:
            running.kill()


@pytest.mark.slow
def test_more_idle_connections_than_files_leave_a_service_answering_and_its_log_short(tmp_path):
    with process(tmp_path) as port, contextlib.ExitStack() as clients:
        for _ in range(FILES + 200):
            clients.enter_context(connect(port))
        assert predict(port, png(0)).status == 200
    assert len((tmp_path / "log").read_text()) < 1000


@pytest.mark.slow
def test_bodies_that_are_no_form_leave_nothing_in_the_log(tmp_path):
    with process(tmp_path) as port:
        for body in (b"nonsense", form(("a.png", png(0)))[0][:-9], b"--x\r\n\x00: a\r\n\r\n--x--"):
            assert predict(port, body, "multipart/form-data; boundary=x").status == 422
    assert (tmp_path / "log").read_text() == ""


def test_bodies_that_have_not_arrived_take_no_place():
    with running_model(limits=Limits(images=2, queue=2)) as (_, port), contextlib.ExitStack() as clients:
        for _ in range(6):
            clients.enter_context(connect(port, HEAD + b"Content-Length: 1000\r\n\r\n\x89PNG"))
        assert predict(port, png(0)).status == 200


MALFORMED = {
    "nonsense": b"hello\r\n\r\n",
    "no version": b"GET /\r\nHost: localhost\r\n\r\n",
    "a header without a colon": b"GET / HTTP/1.1\r\nHost: localhost\r\nnonsense\r\n\r\n",
    "length and chunks": HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and length": HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "two lengths": HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
    "a length that is none": HEAD + b"Content-Length: five\r\n\r\nhello",
    "an encoding that does not end": HEAD + b"Transfer-Encoding: identity\r\n\r\nhello",
    "a bad chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\nfive\r\nhello\r\n",
    "a line of its own in a header": b"GET / HTTP/1.1\r\nHost: localhost\r\nA: b\rc\r\n\r\n",
    "no host": b"GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\nConnection: close\r\n\r\n",
}


@pytest.fixture(scope="module")
def plain():
    with running_model() as found:
        yield found


@pytest.mark.parametrize("sent", MALFORMED.values(), ids=MALFORMED)
def test_what_is_not_http_is_told_in_json(plain, sent):
    service, port = plain
    before = count(service, 'pmal_requests_total{route="other",status="400"}')
    with connect(port, sent) as client:
        status, error = reply_of(client)
    assert status == 400
    assert "\n" not in error
    wait_for(lambda: count(service, 'pmal_requests_total{route="other",status="400"}') > before)
    assert predict(port, png(0)).status == 200


def test_many_requests_in_one_piece_are_answered_and_a_bad_one_after_them_is_told(plain, caplog):
    asked, bad = (
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nA: " + b"b" * 500 + b"\r\n\r\n",
        b"hello\r\n\r\n",
    )
    with connect(plain[1], asked * 400) as client:  # more than what the headers of one may have
        text = b""
        while text.count(b'{"status":"ok"}') < 400:
            text += (piece := client.recv(65536))
            assert piece
        client.sendall(bad)
        assert reply_of(client)[0] == 400
    with connect(plain[1], asked * 400):
        pass  # gone before the answers
    assert predict(plain[1], png(0)).status == 200
    assert not caplog.records


@pytest.mark.parametrize("head", [b"A: " + bytes(200_000), b"A: b\r\n" * 30_000], ids=["long", "many"])
def test_headers_without_end_are_refused(plain, head):
    with connect(plain[1]) as client:
        with contextlib.suppress(OSError):  # closed while we send
            client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n" + head.replace(b"\0", b"x"))
        with contextlib.suppress(ConnectionError):
            status, _ = reply_of(client)
            assert status == 431
    assert predict(plain[1], png(0)).status == 200


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHos"], ids=["nothing", "half a header"])
def test_a_client_that_does_not_finish_its_headers_is_let_go(monkeypatch, sent):
    monkeypatch.setattr(http_connections, "HEADER_SECONDS", 0.2)
    with running_model() as (_, port), connect(port, sent) as client:
        assert reply_of(client)[0] == 408


def test_a_client_has_a_share_of_the_queue():
    model, limits = gated_model(), Limits(images=2, queue=4, client_queue=2)
    body = png(0)
    sent = HEAD + f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body
    with running_model(model, limits) as (service, port), contextlib.ExitStack() as stack:
        inside = [stack.enter_context(connect(port, sent, "127.0.0.2")) for _ in range(2)]
        wait_for(lambda: service.house.places == 2)
        with connect(port, sent, "127.0.0.2") as third:
            status, error = reply_of(third)
            assert (status, "busy" in error) == (503, True)
        other = stack.enter_context(connect(port, sent))
        wait_for(lambda: service.house.places == 3)
        model.gate.set()
        for client in (*inside, other):
            assert client.recv(12) == b"HTTP/1.1 200"
        wait_for(lambda: service.house.places == 0)


def test_a_client_that_is_answered_is_never_closed_for_one_that_comes():
    model, limits = gated_model(), Limits(client_connections=2)
    with running_model(model, limits) as (service, port), contextlib.ExitStack() as stack:
        body = png(0)
        sent = HEAD + f"Content-Length: {len(body)}\r\n\r\n".encode() + body
        busy = [stack.enter_context(connect(port, sent, "127.0.0.2")) for _ in range(2)]
        wait_for(lambda: service.house.places == 2)
        with connect(port, source="127.0.0.2") as third:
            assert reply_of(third)[0] == 503
        assert call(port, "GET", "/healthz").status == 200, "another client"
        model.gate.set()
        assert [client.recv(12) for client in busy] == [b"HTTP/1.1 200"] * 2


class Line:
    """A connection, as far as the count of them is concerned."""

    def __init__(self, name):
        self.name, self.closed = name, False

    def make_room(self):
        self.closed = True


def test_the_one_that_has_waited_longest_makes_room_of_the_client_that_has_most():
    open_lines = Connections(most=4, each=3, proxies=["proxy"])
    a, b, c, other = Line("a"), Line("a"), Line("a"), Line("b")
    for line in (other, a, b, c):
        assert open_lines.admit(line)
        open_lines.waits(line)
    open_lines.busy(a)
    fourth = Line("a")
    assert open_lines.admit(fourth)
    assert [line.closed for line in (a, b, c, other)] == [False, True, False, False]
    assert open_lines.admit(Line("c")), "in all there were too many, and a has most"
    assert [line.closed for line in (a, b, c, other)] == [False, True, True, False]
    assert open_lines.admit(Line("d")), "nobody of a waits any more"
    assert other.closed
    assert not open_lines.admit(Line("e")), "nobody waits"
    for line in (a, fourth):
        open_lines.leave(line)
        open_lines.leave(line)
    assert open_lines.count == 2


def test_a_proxy_has_as_many_as_there_are_in_all():
    open_lines = Connections(most=4, each=1, proxies=["proxy"])
    assert all(open_lines.admit(Line("proxy")) for _ in range(4))
    assert not open_lines.admit(Line("proxy"))


def count(service, name):
    lines = dict(line.rsplit(" ", 1) for line in service.metrics.text().splitlines() if line[0] != "#")
    return float(lines.get(name, 0))
