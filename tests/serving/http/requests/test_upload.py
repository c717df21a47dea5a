"""Bodies as they arrive: in pieces of any size."""

import asyncio

import pytest
from fastapi import Request

from pmal.data.decoding.decode import MAX_PIXELS
from pmal.serving.http.requests.refusals import LINGER_SECONDS, Refused
from pmal.serving.http.requests.upload import House, Limits, read_uploads
from pmal.serving.http.server import GRACE_SECONDS
from tests.serving.http_service import form


def read(body, kind, piece, limits=None, house=None):
    pieces = [body[i : i + piece] for i in range(0, len(body), piece)]
    messages = [{"type": "http.request", "body": part, "more_body": True} for part in pieces]
    messages.append({"type": "http.request", "body": b"", "more_body": False})

    async def receive():
        return messages.pop(0)

    scope = {"type": "http", "method": "POST", "headers": [(b"content-type", kind.encode())]}
    house = house or House(limits or Limits())

    async def run():
        with house.guest() as guest:
            return await read_uploads(Request(scope, receive), guest)

    found = asyncio.run(run())
    assert (house.places, house.held) == (0, 0)
    return found


@pytest.mark.parametrize("piece", [1, 2, 7, 64, 10_000])
def test_forms_in_pieces(piece):
    data = bytes(range(256)) + b"\r\n--x\r\n--\r\n" + b"--x"
    body, kind = form(("größe \u4e2d.png", data), ("b.png", b""), boundary="xyz")
    found = read(body, kind, piece)
    assert [(upload.name, upload.data) for upload in found] == [("größe \u4e2d.png", data), ("b.png", b"")]


def test_files_without_a_name_are_counted_and_what_is_no_file_is_refused():
    part = b'--x\r\nContent-Disposition: form-data; name="a"'
    body = part + b'; filename=""\r\n\r\none\r\n' + part + b'; filename=""\r\n\r\ntwo\r\n--x--'
    found = read(body, "multipart/form-data; boundary=x", 5)
    assert [(upload.name, upload.data) for upload in found] == [("image 1", b"one"), ("image 2", b"two")]
    with pytest.raises(Refused, match="without a filename"):
        read(part + b"\r\n\r\none\r\n--x--", "multipart/form-data; boundary=x", 5)


def test_a_raw_body_in_pieces():
    (upload,) = read(b"abcdef", "IMAGE/PNG; charset=x", 4)
    assert upload.data == b"abcdef"


@pytest.mark.parametrize("kind", ["image/png", "multipart/form-data; boundary=xyz"])
def test_the_limit_holds_without_a_declared_length(kind):
    body, _ = form(("a", bytes(1000)), boundary="xyz")
    with pytest.raises(Refused) as caught:
        read(body, kind, 10, Limits(body_bytes=len(body) - 1))
    assert (caught.value.status, caught.value.unread) == (413, True)
    assert read(body, kind, 10, Limits(body_bytes=len(body)))


def test_headers_of_a_part_without_end_are_refused():
    body = b"--x\r\n" + b"A: b\r\n" * 100_000
    with pytest.raises(Refused) as caught:
        read(body, "multipart/form-data; boundary=x", 1000)
    assert caught.value.status == 422


def test_places_are_given_back_whatever_happens():
    house = House(Limits(queue=2))
    with house.guest() as guest:
        guest.take(places=2, held=10)
        with pytest.raises(Refused) as caught:
            guest.take(places=1)
        assert (house.places, house.held) == (2, 10)
    assert caught.value.status == 503
    assert caught.value.headers == {"Retry-After": "1"}
    assert (house.places, house.held) == (0, 0)


def test_bytes_in_memory_are_taken_up_to_the_limit_and_one_body_always_fits():
    house = House(Limits(body_bytes=8, held_bytes=10))
    with house.guest("a") as guest, house.guest("b") as other:
        guest.take(held=8)
        with pytest.raises(Refused, match="yours"):
            guest.take(held=1)
        other.take(held=2)
        with pytest.raises(Refused, match="busy: try") as caught:
            other.take(held=1)
    assert caught.value.status == 503
    assert read(b"12345678", "image/png", 3, Limits(body_bytes=8, held_bytes=2))


@pytest.mark.parametrize(("declared", "refused"), [("8", False), ("9", True), ("", False), ("x", False)])
def test_a_body_is_judged_by_the_length_that_it_declares(declared, refused):
    headers = [(b"content-type", b"image/png"), (b"content-length", declared.encode())]

    async def receive():
        return {"type": "http.request", "body": b"12345678", "more_body": False}

    async def run():
        with House(Limits(body_bytes=8)).guest() as guest:
            return await read_uploads(Request({"type": "http", "headers": headers}, receive), guest)

    if not refused:
        assert asyncio.run(run())[0].data == b"12345678"
        return
    with pytest.raises(Refused) as caught:
        asyncio.run(run())
    assert caught.value.status == 413


def test_headers_of_a_part_do_not_run_into_each_other():
    lines = (
        b'X-Other: a; filename="b.png"\r\nContent-Disposition: form-data; name="i"; filename="a.png"\r\n\r\n'
        b"one\r\n--x--"
    )
    (upload,) = read(b"--x\r\n" + lines, "multipart/form-data; boundary=x", 7)
    assert (upload.name, upload.data) == ("a.png", b"one")


def test_a_name_that_is_no_text_is_shown_all_the_same():
    body = b'--x\r\nContent-Disposition: form-data; name="i"; filename="\xff.png"\r\n\r\none\r\n--x--'
    (upload,) = read(body, "multipart/form-data; boundary=x", 100)
    assert upload.name == "\xff.png"


def test_the_limits_of_a_service_that_nobody_has_set():
    """What one client can make a service hold, in the worst case, fits into a small machine."""
    limits = Limits()
    assert (limits.body_bytes, limits.held_bytes) == (16 << 20, 256 << 20)
    assert (limits.images, limits.queue, limits.pixels) == (64, 512, MAX_PIXELS)


def test_a_client_that_never_sends_its_body_does_not_spoil_an_orderly_end():
    assert Limits().read_seconds + LINGER_SECONDS < GRACE_SECONDS
