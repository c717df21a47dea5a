"""Embeddings in the body of a request."""

import json

import numpy as np
import pytest

from pmal.data.samples import BadImage
from pmal.serving.http.requests.refusals import Refused
from pmal.serving.http.requests.row_requests import pack_rows, unpack_row


def test_numbers_go_through_as_single_precision():
    packed = pack_rows(json.dumps({"embeddings": [[0.1, 2, -3e-5], [1, 2, 3]]}).encode(), 64)
    assert [name for name, _ in packed] == ["embeddings[0]", "embeddings[1]"]
    expected = np.array([0.1, 2, -3e-5], np.float32)
    np.testing.assert_array_equal(unpack_row(packed[0][1], 3), expected)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "the body is not JSON"),
        (b"\xff", "the body is not JSON"),
        (b"[" * 100_000, "the body is not JSON"),
        (b"[[1, 2]]", "no embeddings in the body"),
        (b"{}", "no embeddings in the body"),
        (b'{"embeddings": []}', "no embeddings in the body"),
        (b'{"embeddings": "abc"}', "no embeddings in the body"),
        (b'{"embeddings": [1, 2]}', "embeddings[0] is not a list of numbers"),
        (b'{"embeddings": [[1], ["2"]]}', "embeddings[1] is not a list of numbers"),
        (b'{"embeddings": [[[1]]]}', "embeddings[0] is not a list of numbers"),
        (b'{"embeddings": [[true]]}', "embeddings[0] is not a list of numbers"),
        (b'{"embeddings": [[null]]}', "embeddings[0] is not a list of numbers"),
    ],
)
def test_other_bodies_are_refused(body, message):
    with pytest.raises(Refused) as caught:
        pack_rows(body, 64)
    assert message in str(caught.value)
    assert caught.value.status == 422


def test_too_many_rows():
    with pytest.raises(Refused, match="more than 2 rows"):
        pack_rows(b'{"embeddings": [[1], [1], [1]]}', 2)


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"1e300", b"1" + b"0" * 400])
def test_numbers_that_are_not_finite_are_no_embedding(number):
    [(_, data)] = pack_rows(b'{"embeddings": [[1, ' + number + b"]]}", 64)
    with pytest.raises(BadImage, match="NaN or infinite"):
        unpack_row(data, 2)


def test_another_width_is_told():
    with pytest.raises(BadImage, match="2 numbers, but the model takes 3"):
        unpack_row(np.ones(2, np.float32).tobytes(), 3)
