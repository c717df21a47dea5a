"""Foreign files: refused in one line, before a runtime runs anything of them."""

import contextlib
import json
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pmal.errors import DataError, UsageError
from pmal.serving.onnx import onnx_file
from pmal.serving.onnx import onnx_model as module
from pmal.serving.onnx.onnx_file import read_metadata
from pmal.serving.onnx.onnx_model import OnnxHeader, OnnxModel
from tests.serving.exports import exported, resealed, some_images
from tests.serving.tiny_model import SIZE

pytestmark = pytest.mark.slow


def changed(**metadata):
    """The bytes of a good file, with other metadata."""
    proto = onnx.load_from_string(exported("distance")[1].data)
    for entry in list(proto.metadata_props):
        if entry.key in metadata:
            proto.metadata_props.remove(entry)
    for key, value in metadata.items():
        if value is not None:
            proto.metadata_props.add(key=key, value=value)
    return proto.SerializeToString() if "sha256" in metadata else resealed(proto)


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
    assert_refused(changed(version="3"), "format version '3'", "use the pmal that wrote it")


def test_a_bit_that_is_flipped_anywhere_is_refused():
    data = exported("distance")[1].data
    for place in range(0, 8 * len(data), 8 * len(data) // 150):
        flipped = bytearray(data)
        flipped[place // 8] ^= 1 << place % 8
        assert_refused(bytes(flipped))


def test_a_file_without_its_checksum_is_refused_unless_a_pmal_wrote_it_that_had_none():
    assert_refused(changed(sha256=None), "damaged (not the checksum")
    assert_refused(changed(sha256="0"), "damaged (not the checksum")
    assert OnnxModel(changed(sha256=None, version="1"), "old.onnx").header.own_classes


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
        {"image_size": "4097"},
        {"image_size": "7"},
        {"image_size": "a"},
        {"own_classes": "4"},
        {"accept": "[1]"},
        {"per_class": None},
        {"own_classes": "0"},
        {"own_classes": "1" * 5000},
        {"classes": "[" * 100_000},
    ],
    ids=lambda metadata: str(metadata)[:30],
)
def test_impossible_metadata_are_refused(metadata):
    data = changed(**metadata)
    assert_refused(data, "metadata")
    with pytest.raises(
        DataError, match=r"its metadata (contradict|are not)"
    ):  # and not by a look at the graph
        OnnxHeader.from_metadata(read_metadata(data))


def test_metadata_that_do_not_fit_the_graph_are_refused():
    assert_refused(changed(image_size="28"), "graph does not fit")
    assert_refused(changed(own_classes="2"), "graph does not fit")
    many = [[["a.png", i] for i in range(50)]] * 3
    assert_refused(changed(prototypes=json.dumps(many)), "graph does not fit")


def entry(name, kind, *shape):
    return SimpleNamespace(name=name, type=kind, shape=list(shape))


IMAGES = entry("images", "tensor(uint8)", "batch", 1, SIZE, SIZE)
SINGLE = [
    entry(name, "", "batch") for name in ("label", "nearest", "score", "threshold", "typicality", "p_value")
]
WIDE = [entry(name, "", "batch", width) for name, width in (("probabilities", 3), ("embedding", 8))]
GRAPH = ([IMAGES], [*SINGLE, *WIDE, entry("attention", "", "batch", 4)])


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        ([], GRAPH[1]),
        ([IMAGES, entry("more", "tensor(uint8)")], GRAPH[1]),
        ([entry("x", IMAGES.type, *IMAGES.shape)], GRAPH[1]),
        ([entry("images", "tensor(float)", *IMAGES.shape)], GRAPH[1]),
        ([entry("images", IMAGES.type, "batch", 3, SIZE, SIZE)], GRAPH[1]),
        *(([IMAGES], [o for o in GRAPH[1] if o is not left_out]) for left_out in GRAPH[1]),
        ([IMAGES], [*GRAPH[1], entry("embedding", "", "batch", "width")]),
        ([IMAGES], [*GRAPH[1], entry("embedding", "", "batch", 0)]),
        ([IMAGES], [*GRAPH[1], entry("attention", "", "batch", 3)]),
        ([IMAGES], [*GRAPH[1], entry("probabilities", "", "batch", 2)]),
    ],
)
def test_a_graph_that_is_not_ours_is_refused(monkeypatch, inputs, outputs):
    def use(inputs, outputs):
        session = SimpleNamespace(get_inputs=lambda: inputs, get_outputs=lambda: outputs)
        session.get_overridable_initializers = list
        monkeypatch.setattr(module, "_open_session", lambda *_: session)

    data = exported("distance")[1].data
    use(*GRAPH)
    OnnxModel(data, "m.onnx")
    use(inputs, outputs)
    assert_refused(data, "graph does not fit")


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


def point_elsewhere(tensor):
    tensor.external_data.add(key="location", value="x")


def locate_elsewhere(tensor):
    tensor.data_location = onnx.TensorProto.EXTERNAL


def in_attribute(attribute):
    """The tensors that an attribute of a node can hold."""
    return {
        "a tensor": lambda: attribute.t,
        "one of several": attribute.tensors.add,
        "sparse values": lambda: attribute.sparse_tensor.values,
        "sparse indices": lambda: attribute.sparse_tensor.indices,
        "one of several sparse": lambda: attribute.sparse_tensors.add().values,
        "in a branch": lambda: attribute.g.initializer.add(),
        "in one of several branches": lambda: attribute.graphs.add().initializer.add(),
        "in a node of a branch": lambda: attribute.g.node.add().attribute.add().t,
    }


def places(model):
    """Every kind of place in a file where a tensor can be."""
    function = model.functions.add()
    found = {
        "weights": model.graph.initializer.add,
        "sparse weights": lambda: model.graph.sparse_initializer.add().values,
        "where sparse weights are": lambda: model.graph.sparse_initializer.add().indices,
        "in a node of a function": lambda: function.node.add().attribute.add().t,
        "default of a function": lambda: function.attribute_proto.add().t,
    }
    return found | in_attribute(model.graph.node.add().attribute.add())


@pytest.mark.parametrize("place", places(onnx.ModelProto()))
@pytest.mark.parametrize("hide", [point_elsewhere, locate_elsewhere])
def test_wherever_a_tensor_is_it_cannot_point_to_another_file(place, hide):
    model = onnx.ModelProto()
    tensor = places(model)[place]()
    tensor.name = "w"
    assert read_metadata(model.SerializeToString()) == {}
    hide(tensor)
    with pytest.raises(DataError, match="keeps data in other files"):
        read_metadata(model.SerializeToString())


def test_a_file_of_too_many_parts_is_refused(monkeypatch):
    data = b"\x08\x01" * 100  # a hundred times the version of the format
    monkeypatch.setattr(onnx_file, "_FIELDS_LIMIT", 100)
    assert read_metadata(data) == {}
    monkeypatch.setattr(onnx_file, "_FIELDS_LIMIT", 99)
    with pytest.raises(DataError, match="more parts than any model"):
        read_metadata(data)


def test_a_file_of_many_small_parts_does_not_take_for_ever():
    with pytest.raises(DataError, match="more parts than any model"):
        read_metadata(b"\x08\x01" * 1_000_001)


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a\x05abcd",  # five bytes declared, four there
        b"\x0d\x01\x02\x03",  # a number of four bytes with three
        b"\x09" + bytes(7),  # of eight with seven
        b"\x02\x00",  # field 0
        b"\x0b",  # groups, which nobody writes any more
        b"\x0f\x00",  # no wire type
        b"\x08" + b"\xff" * 10 + b"\x01",  # a number of 77 bits
        b"\x08\xff",  # a number without end
        b"\x72\x04\x0a\x02\xff\xfe",  # a key that is no text
    ],
)
def test_what_is_no_message_is_refused(data):
    with pytest.raises(DataError, match="not an ONNX file"):
        read_metadata(data)


def test_a_runtime_that_cannot_run_it_is_told_in_one_line():
    proto = onnx.load_from_string(exported("distance")[1].data)
    proto.graph.node[0].op_type = "NoSuchOperator"
    assert_refused(resealed(proto), "onnxruntime cannot run it")


def test_files_are_refused_by_name(tmp_path, monkeypatch):
    good = tmp_path / "good.onnx"
    good.write_bytes(exported("distance")[1].data)
    assert OnnxModel.load(good).about()["score"] == "distance"
    with pytest.raises(DataError, match=r"gone\.onnx: no such file"):
        OnnxModel.load(tmp_path / "gone.onnx")
    with pytest.raises(DataError, match="not a file"):
        OnnxModel.load(tmp_path)
    monkeypatch.setattr(module, "FILE_LIMIT", good.stat().st_size)
    OnnxModel.load(good)
    monkeypatch.setattr(module, "FILE_LIMIT", good.stat().st_size - 1)
    with pytest.raises(DataError, match="larger than"):
        OnnxModel.load(good)

    def refuse(_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(module, "FILE_LIMIT", 1 << 30)
    monkeypatch.setattr(type(good), "read_bytes", refuse)
    with pytest.raises(DataError, match=r"good\.onnx: not readable .Permission denied"):
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
    outside = [{"label": np.array([k, 0])} for k in (-2, 3)] + [
        {"nearest": np.array([k, 0])} for k in (-1, 3)
    ]
    columns = [{name: np.zeros((2, 1))} for name in ("label", "nearest", "score", "threshold")]
    for bad in (*outside, *columns, {"score": np.zeros(1)}):
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
