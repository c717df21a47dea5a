"""Foreign files: refused in one line, before a runtime runs anything of them."""

import contextlib
import json

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pmal.errors import DataError, UsageError
from pmal.serving import onnx_model as module
from pmal.serving.onnx_file import read_metadata
from pmal.serving.onnx_model import OnnxHeader, OnnxModel
from tests.serving.exports import exported, some_images


def changed(**metadata):
    """The bytes of a good file, with other metadata."""
    proto = onnx.load_from_string(exported("distance")[1].data)
    for entry in list(proto.metadata_props):
        if entry.key in metadata:
            proto.metadata_props.remove(entry)
    for key, value in metadata.items():
        if value is not None:
            proto.metadata_props.add(key=key, value=value)
    return proto.SerializeToString()


def assert_refused(data, *parts):
    with pytest.raises(DataError) as caught:
        OnnxModel(data, "m.onnx")
    text = str(caught.value)
    assert text.startswith("m.onnx: ")
    assert "\n" not in text
    for part in parts:
        assert part in text


def test_what_is_no_onnx_file_is_refused():
    for data in (b"\x89PNG\r\n\x1a\n" + bytes(100), b"{}", b"hello world", b"\xff" * 50):
        assert_refused(data)
    assert_refused(b"", "pmal export")


def test_what_pmal_did_not_write_or_another_pmal_did_is_refused():
    assert_refused(changed(format=None), "not a model that `pmal export` wrote")
    assert_refused(changed(format="else"), "not a model that `pmal export` wrote")
    assert_refused(changed(version="2"), "format version '2'", "use the pmal that wrote it")


@pytest.mark.parametrize(
    "metadata",
    [
        {"classes": None},
        {"classes": "[1"},
        {"classes": '["a"]'},
        {"classes": "7"},
        {"thresholds": "[NaN, 1, 1]"},
        {"thresholds": "[1]"},
        {"prototypes": "[[]]"},
        {"prototypes": '[["ab"]]'},
        {"channels": "2"},
        {"image_size": "1000000"},
        {"own_classes": "0"},
        {"own_classes": "1" * 5000},
        {"classes": "[" * 100_000},
    ],
    ids=lambda metadata: str(metadata)[:30],
)
def test_impossible_metadata_are_refused(metadata):
    assert_refused(changed(**metadata), "metadata")


def test_metadata_that_do_not_fit_the_graph_are_refused():
    assert_refused(changed(image_size="28"), "graph does not fit")
    assert_refused(changed(own_classes="2"), "graph does not fit")
    many = [[["a.png", i] for i in range(50)]] * 3
    assert_refused(changed(prototypes=json.dumps(many)), "graph does not fit")


def test_data_in_other_files_are_never_read(tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(10_000_000))
    proto = onnx.load_from_string(exported("distance")[1].data)
    tensor = max(proto.graph.initializer, key=lambda t: len(t.raw_data))
    size = len(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=str(secret))
    tensor.external_data.add(key="length", value=str(size))
    assert_refused(proto.SerializeToString(), "other files")
    # Not only the weights: a constant in a node of a function can point elsewhere as well.
    proto = onnx.load_from_string(exported("distance")[1].data)
    function = proto.functions.add(name="f", domain="d")
    value = function.node.add(op_type="Constant").attribute.add(name="value", type=onnx.AttributeProto.TENSOR)
    value.t.external_data.add(key="location", value="x")
    assert_refused(proto.SerializeToString(), "other files")


def test_a_runtime_that_cannot_run_it_is_told_in_one_line():
    proto = onnx.load_from_string(exported("distance")[1].data)
    proto.graph.node[0].op_type = "NoSuchOperator"
    assert_refused(proto.SerializeToString(), "onnxruntime cannot run it")


def test_files_are_refused_by_name(tmp_path, monkeypatch):
    good = tmp_path / "good.onnx"
    good.write_bytes(exported("distance")[1].data)
    assert OnnxModel.load(good).about()["score"] == "distance"
    with pytest.raises(DataError, match=r"gone\.onnx: no such file"):
        OnnxModel.load(tmp_path / "gone.onnx")
    monkeypatch.setattr(module, "FILE_LIMIT", 100)
    with pytest.raises(DataError, match="larger than"):
        OnnxModel.load(good)


def test_a_missing_runtime_is_named_with_the_fix(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(module.importlib, "import_module", missing)
    with pytest.raises(UsageError, match="pip install onnxruntime"):
        OnnxModel(exported("distance")[1].data, "m.onnx")


def test_answers_outside_the_classes_are_refused(monkeypatch):
    model = OnnxModel(exported("distance")[1].data, "m.onnx")
    images = some_images()[:2].numpy()
    good = dict(model.run(images))
    for bad in ({"label": np.array([7, 0])}, {"nearest": np.array([-1, 0])}, {"score": np.zeros((2, 1))}):
        monkeypatch.setattr(model, "run", lambda _, bad=bad: good | bad)
        with pytest.raises(DataError, match="export it again"):
            model.describe(images, ["a", "b"], 1)


def test_metadata_read_without_a_library_are_those_that_onnx_reads():
    for name in ("distance", "softmax", "added"):
        model, found = exported(name)
        expected = {e.key: e.value for e in onnx.load_from_string(found.data).metadata_props}
        assert read_metadata(found.data) == expected
        header = OnnxHeader.from_metadata(expected)
        assert header == found.header
        assert header.class_names == model.class_names


@given(st.binary(max_size=200))
def test_any_bytes_are_metadata_or_an_error(data):
    try:
        found = read_metadata(data)
    except DataError:
        return
    assert all(isinstance(text, str) for pair in found.items() for text in pair)


@given(st.data())
def test_a_damaged_file_is_read_or_an_error(data):
    good = exported("distance")[1].data
    place = data.draw(st.integers(0, len(good) - 1))
    byte = data.draw(st.integers(0, 255))
    for damaged in (good[:place] + bytes([byte]) + good[place + 1 :], good[:place]):
        with contextlib.suppress(DataError):
            read_metadata(damaged)
