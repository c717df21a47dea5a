"""Who may ask, by the Host header alone, and what every answer says."""

import asyncio

import pytest

from pmal.serving.http.requests.guard import HEADERS, Guard, Rules, allowed_hosts


def ask(hosts, *names):
    """The status and the headers of the answer to a request with these Host headers."""
    sent, reports = [], []

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def receive():
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    headers = [(b"host", name.encode()) for name in names]
    scope = {"type": "http", "method": "GET", "path": "/made/up", "headers": headers}
    asyncio.run(Guard(app, Rules(hosts), lambda *report: reports.append(report[:2]))(scope, receive, send))
    assert reports == [(scope, sent[0]["status"])]
    return sent[0]["status"], {name.decode(): value.decode() for name, value in sent[0]["headers"]}


@pytest.mark.parametrize(
    ("names", "status"),
    [
        (["localhost"], 200),
        (["localhost", "127.0.0.1:80"], 400),
        ([], 400),
        (["evil.example"], 400),
        (["localhost", "evil.example"], 400),
        (["evil.example", "localhost"], 400),
    ],
)
def test_every_host_header_must_be_ours_and_there_must_be_one(names, status):
    assert ask(allowed_hosts("127.0.0.1", []), *names)[0] == status
    assert ask(allowed_hosts("0.0.0.0", []), *names)[0] == (200 if len(names) == 1 else 400)


@pytest.mark.parametrize("name", ["localhost", "evil.example"])
def test_answers_are_not_kept_and_have_all_headers(name):
    _, headers = ask(allowed_hosts("localhost", []), name)
    assert headers["cache-control"] == "no-store"
    assert {key: headers[key.lower()] for key in HEADERS} == HEADERS


@pytest.mark.parametrize("bound", ["127.0.0.1", "127.0.0.2", "::1", "localhost", "LOCALHOST"])
def test_what_is_bound_to_this_machine_has_a_name_of_its_own(bound):
    hosts = allowed_hosts(bound, [])
    assert hosts is not None
    assert bound.lower() in hosts
    assert "evil.example" not in hosts
