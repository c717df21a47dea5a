"""A refusal reaches a client that still sends, and such a client does not keep us."""

import asyncio

import pytest

from pmal.serving.http.requests import refusals as service_errors
from pmal.serving.http.requests.refusals import Refused
from tests.support.hanging import HANGING


def refuse(receive):
    """What is sent, while the client does as `receive` does."""
    sent = []

    async def send(message):
        sent.append(message)

    async def run():
        response = Refused(413, "too\nlarge", retry_after=0.2, unread=True).response()
        await asyncio.wait_for(response({"type": "http"}, receive, send), HANGING)

    asyncio.run(run())
    return sent


def assert_is_whole(sent):
    headers = dict(sent[0]["headers"])
    assert (sent[0]["status"], headers[b"connection"], headers[b"retry-after"]) == (413, b"close", b"1")
    assert sent[1]["body"] == b'{"error":"too large"}'
    assert not sent[-1].get("more_body", False)


def test_a_client_that_is_silent_is_let_go(monkeypatch):
    monkeypatch.setattr(service_errors, "LINGER_SECONDS", 0.02)

    async def silent():
        await asyncio.Event().wait()

    assert_is_whole(refuse(silent))


@pytest.mark.parametrize("pieces", [3, 10**9])
def test_a_client_that_sends_is_listened_to_for_a_while(pieces, monkeypatch):
    monkeypatch.setattr(service_errors, "LINGER_SECONDS", HANGING)
    taken = 0

    async def sending():
        nonlocal taken
        taken += 1
        return {"type": "http.request", "body": bytes(1 << 20), "more_body": taken < pieces}

    assert_is_whole(refuse(sending))
    assert taken == min(pieces, 4)


def test_a_client_that_is_gone_is_not_waited_for():
    async def gone():
        return {"type": "http.disconnect"}

    assert_is_whole(refuse(gone))
