"""Keys, rates and names of clients."""

import pytest

from pmal.errors import DataError
from pmal.serving.http.core import Service
from pmal.serving.http.requests.clients import MOST_CLIENTS, Rates, has_key, read_keys
from pmal.serving.http.requests.upload import Limits
from tests.serving.http_service import call, png, predict, running, running_model, serve_model
from tests.serving.tiny_model import make_model

KEY = "a-key-of-21-characters"


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer a-key", "Basic ???", "Basic YTpi", f"Digest {KEY}", KEY]
)
def test_other_headers_open_nothing(header, tmp_path):
    (tmp_path / "keys").write_text(f"# ours\n\n{KEY}\n")
    keys = read_keys(tmp_path / "keys")
    assert has_key(f"bearer {KEY}", keys)
    assert not has_key(header, keys)


@pytest.mark.parametrize(
    ("text", "words"), [("", "no key"), ("# x\n", "no key"), ("short\n", "less than 16")]
)
def test_a_file_without_a_good_key_is_refused(text, words, tmp_path):
    (tmp_path / "keys").write_text(text)
    for file, reason in ((tmp_path / "keys", words), (tmp_path / "gone", "cannot be read")):
        with pytest.raises(DataError, match=reason):
            read_keys(file)


def test_a_service_with_keys_answers_nobody_else_and_reads_them_again_at_a_reload(tmp_path):
    file, served = tmp_path / "keys", serve_model(make_model())
    file.write_text(KEY)
    service = Service(lambda: served, keys=lambda: read_keys(file), say=lambda line: None)
    with running(service) as port:
        reply = predict(port, png(0))
        assert (reply.status, reply.headers["www-authenticate"][:5]) == (401, "Basic")
        assert "Authorization: Bearer" in reply.body["error"]
        for path in ("/", "/v1/model", "/metrics", "/openapi.json"):
            assert call(port, "GET", path).status == 401
        assert call(port, "GET", "/healthz").status == call(port, "GET", "/readyz").status == 200
        asked = {"Content-Type": "image/png", "Authorization": f"Bearer {KEY}"}
        assert call(port, "POST", "/v1/predict", png(0), asked).status == 200


def test_a_client_that_asks_too_often_is_told_when_to_come_back():
    with running_model(limits=Limits(rate=0.001)) as (_, port):
        assert call(port, "GET", "/v1/model").status == 200
        reply = call(port, "GET", "/v1/model")
        assert reply.status == 429
        assert int(reply.headers["retry-after"]) > 0
        assert call(port, "GET", "/healthz").status == 200


def test_clients_are_forgotten_in_the_order_in_which_they_asked():
    rates = Rates(0.5, lambda: 0.0)
    for client in range(MOST_CLIENTS + 1):
        assert not rates.wait_for(str(client))
    assert rates.wait_for(str(MOST_CLIENTS))
    assert not rates.wait_for("0")
