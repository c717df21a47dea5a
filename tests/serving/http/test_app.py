"""The service over HTTP: answers, and every fault that a client or an operator can bring."""

import asyncio
import contextlib
import http.client
import json
import random
import re
import socket
import threading

import numpy as np
import pytest
import torch

from pmal.data.decoding.decode import decode_fitted, encode_png
from pmal.errors import DataError
from pmal.rejection.model import Rule
from pmal.serving.answers.answering import describe_answers, with_rule
from pmal.serving.http.core import Service
from pmal.serving.http.requests.upload import Limits
from pmal.serving.http.served_model import ServedModel
from tests.serving.http_service import (
    call,
    form,
    gated_model,
    png,
    predict,
    read_reply,
    running,
    running_model,
    serve_model,
)
from tests.serving.tiny_model import CLASSES, SIZE, make_model
from tests.support.bad_images import huge_png
from tests.support.hanging import HANGING, wait_for

LIMITS = Limits(body_bytes=100_000, pixels=1_000_000, images=4)


@pytest.fixture(scope="module")
def served():
    return serve_model(make_model())


@pytest.fixture(scope="module")
def port(served):
    with running_model(served, LIMITS) as (_, port):
        yield port


def assert_error(reply, status, *words):
    assert reply.status == status, reply
    assert reply.headers["content-type"] == "application/json"
    text = reply.body["error"]
    assert "\n" not in text
    assert "/" not in re.sub("(multipart|image|text|application)/", "", text)
    assert "Traceback" not in json.dumps(reply.body)
    for word in words:
        assert word in text


@pytest.mark.parametrize("kind", range(4))
def test_a_raw_image_is_answered_as_predict_answers_it(port, kind):
    reply = predict(port, png(kind))
    assert reply.status == 200, reply
    assert reply.body["errors"] == []
    (answer,) = reply.body["answers"]
    model = make_model()
    pixels = decode_fitted(png(kind), SIZE, 1).transpose(2, 0, 1)
    (expected,) = describe_answers(model, model.answer(torch.from_numpy(pixels.copy())[None]), ["body"])
    assert answer["class"] == expected["class"] == (CLASSES[kind] if kind < 3 else "unknown")
    assert answer["score"] == pytest.approx(expected["score"], rel=1e-5)
    assert answer["threshold"] == expected["threshold"]
    assert [p["id"] for p in answer["prototypes"]] == [p["id"] for p in expected["prototypes"]]
    assert set(answer) == {"index", *expected}
    assert reply.body["model"]["score"] == "distance"
    assert "folder" not in reply.body["model"]


def test_a_form_has_an_answer_for_each_image_and_an_error_for_each_other_part(port):
    body, kind = form(("a.png", png(0)), ("b <i>.txt", b"hello"), ("a.png", png(3)))
    reply = predict(port, body, kind, "?top=1")
    assert reply.status == 200
    assert [(a["index"], a["image"]) for a in reply.body["answers"]] == [(0, "a.png"), (2, "a.png")]
    assert [len(a["prototypes"]) for a in reply.body["answers"]] == [1, 1]
    (error,) = reply.body["errors"]
    assert (error["index"], error["image"]) == (1, "b <i>.txt")
    assert error["reason"].startswith("not a JPEG, PNG")


def test_an_image_gets_the_same_bits_alone_and_in_any_company(port):
    alone = {kind: predict(port, png(kind)).body["answers"][0] for kind in range(4)}
    for order in ([0, 1, 2, 3], [3, 2, 1, 0], [2, 2, 2], [1, 3]):
        body, kind = form(*((f"{k}.png", png(k)) for k in order))
        for k, answer in zip(order, predict(port, body, kind).body["answers"], strict=True):
            assert answer | {"index": 0, "image": "body"} == alone[k]


def test_the_score_that_decides_can_be_chosen(port, served):
    found = {}
    for score in call(port, "GET", "/v1/model").body["scores"]:
        reply = predict(port, png(3), query=f"?score={score}").body
        (found[score],) = reply["answers"]
        about = call(port, "GET", f"/v1/model?score={score}").body
        assert reply["model"]["score"] == about["score"] == score
        assert about["note"] == reply["model"]["note"]
        # All that the decision is made of is of this score.
        model = with_rule(served.model, score=score)
        pixels = decode_fitted(png(3), SIZE, 1).transpose(2, 0, 1)
        (expected,) = describe_answers(model, model.answer(torch.from_numpy(pixels.copy())[None]), ["body"])
        for name in ("class", "known", "threshold", "p_value", "because"):
            assert found[score][name] == expected[name]
        assert about["classes"][0]["threshold"] == expected["threshold"]
    assert len({answer["threshold"] for answer in found.values()}) == len(found) > 4
    stored = predict(port, png(3)).body
    assert stored["model"]["score"] == "distance"
    assert stored["answers"] == [found["distance"]]


def test_a_score_that_the_model_does_not_have_is_told_in_one_line(port):
    for reply in (predict(port, png(0), query="?score=logits"), call(port, "GET", "/v1/model?score=logits")):
        assert_error(reply, 422, "unknown score of this model 'logits': did you mean 'logit'?")
    assert_error(predict(port, png(0), query="?score=typicality"), 422, "unknown score")
    assert_error(predict(port, png(0), query="?score=%0A%3Cscript%3E"), 422, "unknown score")
    assert_error(predict(port, png(0), query=f"?score={'x' * 65}"), 422, "score")


def test_images_that_are_asked_about_by_several_scores_at_once_get_the_bits_of_each(port):
    image, wrong = png(1), []  # made once: its random numbers are not for several threads
    alone = {score: predict(port, image, query=f"?score={score}").body for score in ("logit", "neighbors")}

    def ask(seed):
        for score in random.Random(seed).choices([*alone], k=20):
            reply = predict(port, image, query=f"?score={score}").body
            if reply != alone[score]:
                wrong.append(reply)

    clients = [threading.Thread(target=ask, args=(seed,)) for seed in range(4)]
    for client in clients:
        client.start()
    for client in clients:
        client.join(HANGING)
    assert not wrong, wrong[0]


def test_the_pictures_of_prototypes(port, served):
    (answer,) = predict(port, png(1)).body["answers"]
    for prototype in answer["prototypes"]:
        reply = call(port, "GET", "/" + prototype["picture"])
        assert reply.status == 200
        rank = prototype["id"] - 10
        expected = served.model.pictures[4 + rank].permute(1, 2, 0).numpy()
        assert (decode_fitted(reply.body, SIZE, 1) == expected).all()
    for wrong in ("ee/1/0", "ff/7/0", "ff/1/2"):
        assert_error(call(port, "GET", f"/v1/prototypes/{'f' * 14}{wrong}.png"), 404)
    assert_error(call(port, "GET", f"/v1/prototypes/{'f' * 16}/-1/0.png"), 422)


def test_a_declared_body_over_the_limit_is_refused_before_it_is_sent(port):
    with socket.create_connection(("127.0.0.1", port), timeout=HANGING) as client:
        head = "POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"
        client.sendall(f"{head}Content-Length: 100001\r\n\r\n".encode())
        assert client.recv(100).startswith(b"HTTP/1.1 413 ")


def test_an_undeclared_body_is_cut_off_at_the_limit(port):
    sent = 0

    def endless():
        nonlocal sent
        while sent < 2**30:
            sent += 50_000
            yield bytes(50_000)

    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANGING)
    with contextlib.suppress(OSError):  # the connection is closed while we send
        connection.request("POST", "/v1/predict", endless(), {"Content-Type": "image/png"})
    assert sent < 2**28
    connection.close()
    reply = predict(port, bytes(150_000))
    assert_error(reply, 413, "100000")
    assert reply.headers["connection"] == "close"


def test_too_many_images_in_one_request(port):
    body, kind = form(*((f"{i}.png", png(0)) for i in range(5)))
    assert_error(predict(port, body, kind), 413, "more than 4 images")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"hello", ["not a JPEG"]),
        (b"", ["empty"]),
        (huge_png(), ["10000 x 6000", "limit of 1000000"]),
        (png(0)[:60], ["PNG"]),
    ],
)
def test_what_is_no_image_or_too_large_a_one_is_told(port, data, words):
    reply = predict(port, data)
    assert_error(reply, 422, *words)
    assert [error["index"] for error in reply.body["errors"]] == [0]


def test_a_form_without_any_good_image(port):
    body, kind = form(("a", b"x"), ("b", b""))
    reply = predict(port, body, kind)
    assert_error(reply, 422, "not a JPEG")
    assert [error["image"] for error in reply.body["errors"]] == ["a", "b"]


def test_other_types_are_not_taken(port):
    for kind in ("text/plain", "image/svg+xml", "application/x-www-form-urlencoded", ""):
        assert_error(predict(port, png(0), kind), 415)


def test_broken_forms(port):
    body, kind = form(("a.png", png(0)))
    assert_error(predict(port, body[:-10], kind), 422, "well-formed")
    assert_error(predict(port, b"nonsense", kind), 422, "well-formed")
    assert_error(predict(port, body, "multipart/form-data"), 422, "boundary")
    assert_error(predict(port, *form()), 422)


def test_a_client_that_never_sends_its_body_is_let_go(served):
    with running_model(served, Limits(read_seconds=1.0)) as (_, port):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANGING)
        connection.putrequest("POST", "/v1/predict")
        connection.putheader("Content-Type", "image/png")
        connection.putheader("Content-Length", "1000")
        connection.endheaders(b"\x89PNG")
        assert_error(read_reply(connection), 408, "1 s")
        connection.close()


def test_wrong_paths_methods_and_parameters(port):
    assert_error(call(port, "GET", "/nothing"), 404)
    assert_error(call(port, "GET", "/v1/predict"), 405)
    assert_error(predict(port, png(0), query="?top=-1"), 422, "top")
    assert_error(predict(port, png(0), query="?top=many"), 422, "top")


def test_a_foreign_host_is_refused(port):
    for host in ("evil.example", "evil.example:80", "localhost.evil.example", ""):
        assert_error(call(port, "GET", "/v1/model", headers={"Host": host}), 400, "host")
    for host in ("localhost", f"127.0.0.1:{port}", "[::1]:8000", "LOCALHOST:1"):
        assert call(port, "GET", "/v1/model", headers={"Host": host}).status == 200


def test_hosts_that_were_allowed(served):
    with running(Service(lambda: served), "0.0.0.0", ["photos.lan"]) as port:
        assert call(port, "GET", "/healthz", headers={"Host": "photos.lan"}).status == 200
        assert call(port, "GET", "/healthz", headers={"Host": "evil.example"}).status == 400
    with running(Service(lambda: served), "0.0.0.0") as port:
        assert call(port, "GET", "/healthz", headers={"Host": "any.example"}).status == 200


def test_every_answer_has_the_headers_that_keep_others_out(port):
    for path in ("/", "/page.js", "/v1/model", "/nothing"):
        headers = call(port, "GET", path, headers={"Origin": "http://evil.example"}).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in headers
        assert "server" not in headers


def test_health_metrics_and_openapi(port):
    assert call(port, "GET", "/healthz").body == {"status": "ok"}
    assert call(port, "HEAD", "/readyz").status == 200
    predict(port, png(3))
    text = call(port, "GET", "/metrics").body.decode()
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(values['pmal_images_total{result="unknown"}']) >= 1
    assert float(values['pmal_requests_total{route="/v1/predict",status="200"}']) >= 1
    assert not any("/nothing" in name for name in values)
    assert values["pmal_images_inside"] == values["pmal_body_bytes"] == "0.0"
    assert float(values["process_resident_memory_bytes"]) > 1e6
    paths = call(port, "GET", "/openapi.json").body["paths"]
    assert "multipart/form-data" in paths["/v1/predict"]["post"]["requestBody"]["content"]
    assert b"http" not in call(port, "GET", "/docs").body.replace(b"<!doctype html>", b"")


def test_a_full_house_is_503_and_whoever_is_in_is_answered():
    model, found = gated_model(), []
    with running_model(model, Limits(images=2, queue=2)) as (service, port):
        clients = [threading.Thread(target=lambda: found.append(predict(port, png(0)))) for _ in range(2)]
        for client in clients:
            client.start()
        wait_for(lambda: service.house.places == 2)
        reply = predict(port, png(1))
        assert_error(reply, 503, "busy")
        assert reply.headers["retry-after"] == "1"
        model.gate.set()
        for client in clients:
            client.join(HANGING)
        assert [reply.status for reply in found] == [200, 200]
        assert predict(port, png(1)).status == 200
        assert (service.house.places, service.house.held) == (0, 0)


def test_every_image_of_a_request_takes_a_place():
    with running_model(limits=Limits(images=4, queue=2)) as (service, port):
        for count, status in ((2, 200), (3, 503)):
            reply = predict(port, *form(*((f"{i}.png", png(0)) for i in range(count))))
            assert reply.status == status
        assert service.house.places == 0


def test_bodies_in_memory_have_a_limit_of_their_own():
    with running_model(limits=Limits(body_bytes=1000, held_bytes=1000)) as (service, port):
        service.house.held = 990
        assert_error(predict(port, bytes(11)), 503, "busy")
        assert service.house.held == 990


def test_the_work_of_a_client_that_is_gone_is_dropped():
    model = gated_model()
    with running_model(model) as (service, port):
        first = threading.Thread(target=predict, args=(port, png(0)))
        first.start()
        wait_for(lambda: len(model.asked) == 1)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANGING)
        body, kind = form(("gone.png", png(1)))
        connection.request("POST", "/v1/predict", body, {"Content-Type": kind})
        wait_for(lambda: service.batcher.waiting == 1)
        connection.sock.close()
        connection.close()
        wait_for(lambda: service.house.places == 1)
        model.gate.set()
        first.join(HANGING)
        assert predict(port, png(2)).status == 200
        assert "gone.png" not in model.asked
        assert 'pmal_images_total{result="dropped"} 1.0' in service.metrics.text()


def test_large_images_are_decoded_one_at_a_time_and_hold_nobody_up(monkeypatch):
    monkeypatch.setattr("pmal.serving.http.core.LARGE_PIXELS", 50 * 50)
    at_once, gate, lock = [0, 0], threading.Event(), threading.Lock()

    class Watched(ServedModel):
        def decode(self, data, max_pixels):
            image = super().decode(data, max_pixels)
            if data == large:
                with lock:
                    at_once[0] += 1
                    at_once[1] = max(at_once)
                assert gate.wait(HANGING)
                with lock:
                    at_once[0] -= 1
            return image

    large = encode_png(np.zeros((60, 60, 1), np.uint8))
    with running_model(serve_model(make_model(), kind=Watched)) as (_, port):
        found = []
        clients = [threading.Thread(target=lambda: found.append(predict(port, large))) for _ in range(3)]
        for client in clients:
            client.start()
        wait_for(lambda: at_once[0])
        assert predict(port, png(0)).status == 200
        gate.set()
        for client in clients:
            client.join(HANGING)
        assert [reply.status for reply in found] == [200, 200, 200]
        assert at_once == [0, 1]


def test_a_broken_model_is_an_error_without_its_reason():
    class Broken(ServedModel):
        def answer(self, asked):
            raise RuntimeError("secret in /home/somebody")

    with running_model(serve_model(make_model(), kind=Broken)) as (service, port):
        for _ in range(2):  # and the worker goes on
            reply = predict(port, png(0))
            assert_error(reply, 500, "internal error")
            assert "nosniff" in reply.headers["x-content-type-options"]
        assert call(port, "GET", "/readyz").status == 200
        assert 'pmal_requests_total{route="/v1/predict",status="500"} 2' in service.metrics.text()


def test_after_a_failure_the_rest_of_its_request_is_dropped():
    asked = []

    class Broken(ServedModel):
        def answer(self, tickets):
            asked.append(tickets[0][1])
            raise RuntimeError("broken")

    with running_model(serve_model(make_model(), batch=1, kind=Broken)) as (service, port):
        body, kind = form(*((f"{i}.png", png(0)) for i in range(30)))
        assert predict(port, body, kind).status == 500
        assert service.house.places == 0
        wait_for(lambda: service.batcher.waiting == 0)
        predict(port, png(0))
        assert len(asked) < 10, "it had no place any more, but went on"


def test_no_memory_for_an_image_is_no_fault_of_the_image():
    class Full(ServedModel):
        def decode(self, data, max_pixels):
            raise MemoryError

    with running_model(serve_model(make_model(), kind=Full)) as (service, port):
        reply = predict(port, png(0))
        assert (reply.status, reply.headers["retry-after"]) == (503, "5")
        assert "no memory" in reply.body["error"]
        assert service.house.places == 0


def test_a_bad_bundle_at_reload_leaves_the_old_model_answering():
    said, bundles = [], [serve_model(make_model(), fingerprint="a" * 64)]

    def load():
        if isinstance(bundles[0], Exception):
            raise bundles[0]
        return bundles[0]

    service = Service(load, say=said.append)
    with running(service) as port:
        for bad in (DataError("weights.safetensors: damaged"), MemoryError("too large")):
            bundles[0] = bad
            asyncio.run(service.reload())
            assert predict(port, png(0)).body["model"]["fingerprint"] == "a" * 64
            assert call(port, "GET", "/readyz").status == 200
        assert "the old model continues to answer: weights.safetensors: damaged" in said[0]
        rule = Rule("logit", threshold=0.0)
        bundles[0] = serve_model(make_model(rule, prototypes=False, channels=3), fingerprint="b" * 64)
        asyncio.run(service.reload())
        reply = predict(port, png(0)).body
        assert (reply["model"]["fingerprint"], reply["answers"][0]["prototypes"]) == ("b" * 64, [])
    assert 'pmal_reloads_total{result="failed"} 2.0' in service.metrics.text()


@pytest.mark.slow
def test_twenty_clients_with_good_and_bad_requests_get_the_answers_of_one():
    """Every good answer is that of a single request, bit for bit; every bad one has its own status."""
    crowd = threading.Event()

    class Crowded(ServedModel):
        """Lets two images wait for the first, and takes them together."""

        def answer(self, asked):
            if crowd.is_set():
                wait_for(lambda: service.batcher.waiting > 1)
                crowd.clear()
            return super().answer(asked)

    with running_model(serve_model(make_model(), kind=Crowded), LIMITS) as (service, port):
        images = [png(kind, seed=3, row=row) for kind in range(4) for row in range(5)]
        expected = [predict(port, image).body["answers"][0] for image in images]
        bad = [
            (b"no image", "image/png", 422),
            (png(0), "text/plain", 415),
            (bytes(150_000), "image/png", 413),
        ]
        wrong, done = [], []

        def ask(seed):
            choose = random.Random(seed)
            for _ in range(20):
                if choose.random() < 0.2:
                    data, kind, status = choose.choice(bad)
                    reply = predict(port, data, kind)
                    if reply.status != status:
                        wrong.append(reply)
                else:
                    i = choose.randrange(len(images))
                    reply = predict(port, images[i])
                    if reply.status != 200 or reply.body["answers"][0] != expected[i]:
                        wrong.append(reply)
            done.append(seed)

        crowd.set()
        clients = [threading.Thread(target=ask, args=(seed,)) for seed in range(20)]
        for client in clients:
            client.start()
        for client in clients:
            client.join(HANGING)
        assert not wrong, wrong[0]
        assert sorted(done) == list(range(20))
        alone = re.search(r'pmal_batch_images_bucket{le="1.0"} (.*)', service.metrics.text())[1]
        batches = re.search("pmal_batch_images_count (.*)", service.metrics.text())[1]
        assert float(batches) > float(alone), "no two images ever went together"
        assert (service.house.places, service.house.held) == (0, 0)
