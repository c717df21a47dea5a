"""What each route promises beside its answer: limits of parameters, headers, and states of the service."""

import socket

import pytest

from pmal.serving.answers.answer_files import read_p_values
from pmal.serving.answers.traffic import Traffic
from pmal.serving.http.schemas import Watched
from tests.serving.http_service import call, png, predict, running_model
from tests.support.hanging import HANGING, wait_for


@pytest.fixture(scope="module")
def running():
    with running_model() as found:
        yield found


@pytest.fixture
def port(running):
    return running[1]


@pytest.mark.parametrize(("top", "status"), [(0, 200), (100, 200), (101, 422), (-1, 422)])
def test_the_number_of_prototypes_has_its_limits(port, top, status):
    reply = predict(port, png(0), query=f"?top={top}")
    assert reply.status == status
    if status == 422:
        assert reply.body["error"].startswith("top: ")
        assert reply.headers["connection"] == "close", "its body was never read"


def test_a_method_that_a_path_does_not_have_is_told_with_the_one_it_has(port):
    reply = call(port, "GET", "/v1/predict")
    assert (reply.status, reply.headers["allow"]) == (405, "POST")


def test_pictures_of_prototypes_may_be_kept_and_answers_may_not(port):
    answer = predict(port, png(0))
    [path, *_] = [p["picture"] for p in answer.body["answers"][0]["prototypes"]]
    assert answer.headers["cache-control"] == "no-store"
    picture = call(port, "GET", f"/{path}")
    assert (picture.status, picture.headers["cache-control"]) == (200, "max-age=86400, immutable")


def test_a_client_that_goes_before_its_body_is_there_is_counted_as_such(running):
    service, port = running
    with socket.create_connection(("127.0.0.1", port), HANGING) as client:
        head = "POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"
        client.sendall(f"{head}Content-Length: 1000\r\n\r\n".encode() + b"begin")
    wait_for(lambda: 'pmal_requests_total{route="/v1/predict",status="499"} 1.0' in service.metrics.text())


def test_a_service_whose_worker_has_ended_is_not_ready():
    with running_model() as (service, port):
        service.batcher._loop.get_loop().call_soon_threadsafe(service.batcher._loop.cancel)
        wait_for(lambda: not service.batcher.alive)
        reply = call(port, "GET", "/readyz")
        assert (reply.status, reply.headers["retry-after"]) == (503, "10")
        assert "restart" in reply.body["error"]
        assert call(port, "GET", "/healthz").status == 200


def test_the_watch_counts_answers_of_the_score_that_decides(tmp_path):
    kept = tmp_path / "p.csv"
    with running_model(traffic=Traffic(0.01, kept, print)) as (service, port):
        noise = [png(9, seed=i) for i in range(3)]
        found = [predict(port, picture).body["answers"][0]["p_value"] for picture in noise]
        predict(port, noise[0], query="?score=neighbors")
        predict(port, b"no image")
        state = call(port, "GET", "/v1/traffic").body
        metrics = service.metrics.text().splitlines()
    assert (state["answered"], state["rejected"], state["reason"], state["alarm"]) == (3, 3, None, False)
    assert Watched(**state).points.answered == [0, 1, 2, 3]
    assert read_p_values(kept) == found
    assert {"pmal_watch_answers 3.0", "pmal_watch_known_alarm 0.0"} <= set(metrics)
    evidence = next(line for line in metrics if line.startswith("pmal_watch_traffic_evidence"))
    assert float(evidence.split()[1]) == state["traffic"]["evidence"]
