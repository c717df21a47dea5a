"""The service in a thread of the test, over a real socket."""

import contextlib
import http.client
import json
import socket
import threading
import uuid
from collections import namedtuple

from pmal.data.decoding.decode import encode_png
from pmal.serving.http.app import create_app
from pmal.serving.http.batching import batch_size
from pmal.serving.http.core import Service
from pmal.serving.http.served_model import ServedModel
from pmal.serving.http.server import make_server
from tests.serving.tiny_model import make_model, pictures_of
from tests.support.hanging import HANGING, wait_for

Reply = namedtuple("Reply", ["status", "headers", "body"])


def serve_model(model, name="tiny", fingerprint="f" * 64, batch=0, kind=ServedModel):
    return kind(model, name, fingerprint, batch_size(model, batch))


class GatedModel(ServedModel):
    """Answers when the gate is open, and knows whom it was asked about."""

    gate = threading.Event()
    asked = ()

    def answer(self, asked):
        type(self).asked = (*self.asked, *(name for _, name, _ in asked))
        assert self.gate.wait(HANGING)
        return super().answer(asked)


def gated_model():
    """With a gate of its own."""
    kind = type("Gated", (GatedModel,), {"gate": threading.Event(), "asked": ()})
    return serve_model(make_model(), batch=1, kind=kind)


@contextlib.contextmanager
def running(service, bound="127.0.0.1", hosts=()):
    """The port of a running service."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = make_server(create_app(service, bound, hosts), service)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            wait_for(lambda: server.started)
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(HANGING)
            assert not thread.is_alive()


@contextlib.contextmanager
def running_model(served=None, limits=None, said=None, **other):
    """The same with a service of this model: (service, port)."""
    served = served or serve_model(make_model())
    say = (said if said is not None else []).append
    service = Service(lambda: served, limits, say=say, **other)
    with running(service) as port:
        yield service, port


def call(port, method, path, body=None, headers=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANGING)
    try:
        connection.request(method, path, body, headers or {})
        return read_reply(connection)
    finally:
        connection.close()


def read_reply(connection):
    response = connection.getresponse()
    data = response.read()
    kind = response.headers.get("content-type", "")
    return Reply(response.status, response.headers, json.loads(data) if data and "json" in kind else data)


def predict(port, data, kind="image/png", query=""):
    return call(port, "POST", f"/v1/predict{query}", data, {"Content-Type": kind})


def form(*parts, boundary=None):
    """A multipart body and its type, of (file name, bytes)."""
    boundary = boundary or uuid.uuid4().hex
    body = b"".join(
        f'--{boundary}\r\nContent-Disposition: form-data; name="image"; filename="{name}"\r\n'
        "Content-Type: image/png\r\n\r\n".encode()
        + data
        + b"\r\n"
        for name, data in parts
    )
    return body + f"--{boundary}--\r\n".encode(), f"multipart/form-data; boundary={boundary}"


def png(kind, seed=7, row=0):
    """Of class 0 to 2 of the tiny model, or noise that is none of them."""
    picture = pictures_of(kind, row + 1, seed)[row]
    return encode_png(picture.permute(1, 2, 0).contiguous().numpy())
