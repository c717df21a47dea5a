"""An exported file answers as the model does, or there is none."""

import json
import logging
import math
import signal
import weakref
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
import torch

from pmal._runtime.progress import Silent
from pmal.errors import DataError, Interrupted, PmalError, UsageError, out_of_memory
from pmal.rejection.model import Rule
from pmal.serving.answers.answering import describe_answers
from pmal.serving.onnx import exporting as module
from pmal.serving.onnx import onnx_model
from pmal.serving.onnx import parity as export_check
from pmal.serving.onnx.exporting import build_onnx, describe_header, export_onnx, output_paths, write_export
from pmal.serving.onnx.onnx_model import OnnxModel
from pmal.serving.onnx.parity import Images, check_parity, images_to_check
from tests.serving.exports import MODELS, exported, some_images
from tests.serving.tiny_model import SESSION, SIZE, make_model

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", MODELS)
def test_answers_are_those_of_pytorch_in_batches_of_any_size(name):
    model, found = exported(name)
    images = some_images(seed=11)
    if model.classifier.spec.channels == 3:
        images = images.expand(-1, 3, -1, -1).contiguous()
    names = [f"{b}.png" for b in range(len(images))]
    expected = describe_answers(model, model.answer(images), names, 2)
    runtime = OnnxModel(found.data, "m.onnx")
    answers = runtime.describe(images.numpy(), names, 2)
    for got, wanted in zip(answers, expected, strict=True):
        for field in ("image", "class", "known", "nearest", "threshold"):
            assert got[field] == wanted[field]
        assert got["score"] == pytest.approx(wanted["score"], rel=1e-4, abs=1e-7)
        if wanted["probability"] is None:
            assert got["probability"] is None
        else:
            assert got["probability"] == pytest.approx(wanted["probability"], abs=1e-5)
        assert [p["file"] for p in got["prototypes"]] == [p["file"] for p in wanted["prototypes"]]
    alone = runtime.run(images.numpy(), batch=1)
    assert alone["label"].tolist() == runtime.run(images.numpy())["label"].tolist()
    assert found.parity.decisions_differ == 0
    assert found.parity.score_difference < 1e-4


def test_the_file_is_one_graph_without_other_files_or_traces_of_this_machine():
    _, found = exported("combined")
    proto = onnx.load_from_string(found.data)
    onnx.checker.check_model(proto, full_check=True)
    assert [opset.domain for opset in proto.opset_import] == [""]
    assert proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param
    assert not any(t.external_data for t in proto.graph.initializer)
    for trace in (b".py", b"/src/", b"torch.nn"):
        assert trace not in found.data
    about = {entry.key: entry.value for entry in proto.metadata_props}
    assert json.loads(about["classes"]) == list(exported("combined")[0].class_names)
    assert (about["score"], about["accept"], about["image_size"]) == ("combined", "0.8", str(SIZE))


def test_another_threshold_network_or_weight_is_refused():
    model, found = exported("distance")
    runtime, images = OnnxModel(found.data, "m.onnx"), Images(some_images(), "some")
    strict = replace(model, rule=Rule("distance", threshold=model.limits()[0].item() / 2))
    with pytest.raises(PmalError, match="decisions differ"):
        check_parity(strict, runtime, images)
    longer = replace(model.reference, prototypes_KTD=2 * model.reference.prototypes_KTD)
    with pytest.raises(PmalError, match="differ"):
        check_parity(replace(model, reference=longer), runtime, images)
    other = make_model()
    with torch.no_grad():
        next(other.classifier.encoder.parameters())[:5].mul_(1.01)
    with pytest.raises(PmalError, match=r"embeddings differ.*batches of 64"):
        check_parity(other, runtime, images)


def test_an_image_at_the_threshold_is_counted_and_not_refused():
    model, found = exported("distance")
    runtime, images = OnnxModel(found.data, "m.onnx"), some_images()
    score = model.answer(images).score
    shifted = runtime.run(images.numpy())
    at = int((score - float(score.median())).abs().argmin())
    limit = float(score[at])
    by_hand = replace(model, rule=Rule("distance", threshold=limit))
    labels = np.where(shifted["score"] <= limit, shifted["nearest"], -1)
    labels[at] = -1  # as if its score had been rounded up
    answer = dict(shifted) | {"label": labels, "threshold": np.full(len(labels), limit)}
    parity = module.check_parity(by_hand, _Fixed(answer), Images(images, "some"))
    assert parity.decisions_differ == 1
    labels[(at + 1) % len(labels)] ^= 1
    with pytest.raises(PmalError, match="decisions differ"):
        module.check_parity(by_hand, _Fixed(answer), Images(images, "some"))


class _Fixed:
    takes_accept = False

    def __init__(self, answer):
        self.answer = answer

    def run(self, images, batch=64):
        return {name: values[: len(images)] for name, values in self.answer.items()}


def test_infinite_thresholds_are_kept():
    model = make_model(Rule("distance", threshold=math.inf))
    header = describe_header(model)
    assert type(header).from_metadata(header.to_metadata()) == header
    assert header.accept is None
    assert set(header.thresholds) == {math.inf}


def test_where_the_images_of_prototypes_lie_concerns_nobody():
    model = make_model()
    gallery = tuple(tuple(replace(p, file=f"/home/me/photos/{p.file}") for p in row) for row in model.gallery)
    found = describe_header(replace(model, gallery=gallery))
    assert found.prototypes == describe_header(model).prototypes
    assert found.prototypes[0][:2] == (("cat/0.png", 0), ("cat/1.png", 1))
    assert "/home" not in str(found.to_metadata())


def test_a_network_that_cannot_be_traced_is_told_in_one_line(monkeypatch):
    class Odd(torch.nn.Module):
        num_features = 128

        def forward(self, images):
            return images.new_zeros(len(images.nonzero()), 128)

    model, logger = make_model(), logging.getLogger("torch.onnx")
    model.classifier.encoder = Odd()
    monkeypatch.setattr(logger, "level", logging.INFO)  # as a program around it may have chosen
    with pytest.raises(PmalError, match="encoder small, head linear cannot be traced") as caught:
        build_onnx(model, describe_header(model))
    assert "\n" not in str(caught.value)
    assert logger.level == logging.INFO


def test_an_interruption_is_one_wherever_the_exporter_is(raising, monkeypatch):
    def swallow(*_, **__):
        freed = torch.zeros(1)
        watch = weakref.ref(freed, lambda _: signal.raise_signal(signal.SIGINT))
        del freed
        assert watch() is None

    monkeypatch.setattr(torch.onnx, "export", swallow)
    model = make_model()
    with pytest.raises(Interrupted, match="go on"):
        build_onnx(model, describe_header(model))


def test_an_interruption_while_images_are_read_or_answered_is_no_fault_of_theirs(tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise Interrupted(signal.SIGINT, "interrupted")

    (tmp_path / "config.toml").touch()
    monkeypatch.setattr(export_check, "_run_images", interrupted)
    with pytest.raises(Interrupted):
        images_to_check(make_model(), tmp_path, SESSION)
    runtime = OnnxModel(exported("distance")[1].data, "m.onnx")
    runtime._session = SimpleNamespace(run=interrupted)
    with pytest.raises(Interrupted):
        runtime.run(some_images().numpy())


def test_a_model_without_a_threshold_is_refused_before_any_work():
    with pytest.raises(UsageError, match="threshold"):
        export_onnx(make_model(calibrated=False), Images(some_images(), "some"))


def test_missing_libraries_are_named_with_the_fix(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(module.importlib, "import_module", missing)
    with pytest.raises(UsageError, match=r"pip install 'pmal\[onnx\]'"):
        build_onnx(make_model(), describe_header(make_model()))


def test_images_without_a_run_are_prototypes_and_noise(tmp_path):
    images = images_to_check(make_model(), tmp_path, SESSION)
    assert images.text == "9 prototypes, 64 random images"
    assert images.pixels.shape == (73, 1, SIZE, SIZE)


def test_a_run_whose_data_are_gone_is_compared_on_what_is_left(tmp_path):
    (tmp_path / "config.toml").write_text('[data]\nsource = "/no/such/folder"\n')
    said = []
    display = Silent()
    display.say = said.append
    images = images_to_check(make_model(), tmp_path, replace(SESSION, display=display))
    assert images.text == "9 prototypes, 64 random images"
    assert "not compared on the images of the run" in said[0]


def test_batches_shrink_where_many_classes_would_fill_the_memory(monkeypatch):
    _, found = exported("distance")
    monkeypatch.setattr(onnx_model, "BATCH_NUMBERS", 3 * 128 * 5)
    runtime = OnnxModel(found.data, "m.onnx")
    sizes, session = [], runtime._session

    class Counting:
        def run(self, names, inputs):
            sizes.append(len(inputs["images"]))
            return session.run(names, inputs)

    runtime._session = Counting()
    assert len(runtime.run(some_images()[:12].numpy())["label"]) == 12
    assert sizes == [5, 5, 2]


def test_where_the_files_go(tmp_path):
    folder = tmp_path / "run" / "model"
    folder.mkdir(parents=True)
    file, card = output_paths(folder, None, force=False)
    assert (file, card) == (tmp_path / "run" / "model.onnx", tmp_path / "run" / "model.md")
    write_export(file, card, b"data", "text")
    assert (file.read_bytes(), card.read_text()) == (b"data", "text")
    with pytest.raises(UsageError, match="--force"):
        output_paths(folder, None, force=False)
    assert output_paths(folder, None, force=True)[0] == file
    with pytest.raises(UsageError, match="folder of the model"):
        output_paths(folder, folder / "m.onnx", force=False)
    (tmp_path / "d.onnx").mkdir()
    with pytest.raises(UsageError, match="is a folder"):
        output_paths(folder, tmp_path / "d.onnx", force=True)
    with pytest.raises(UsageError, match=r"end in \.onnx"):
        output_paths(folder, tmp_path / "m.bin", force=False)


def test_a_full_disk_leaves_neither_file_nor_card(tmp_path, monkeypatch):
    def full(path, text):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_text", full)
    with pytest.raises(OSError, match="No space"):
        write_export(tmp_path / "m.onnx", tmp_path / "m.md", b"data", "text")
    assert list(tmp_path.iterdir()) == []


def test_damaged_bytes_are_refused_by_the_same_reader():
    _, found = exported("distance")
    with pytest.raises(DataError):
        OnnxModel(found.data[: len(found.data) // 2], "m.onnx")


def test_no_room_for_the_file_is_told_as_any_other_lack_of_memory():
    """protobuf has an error of its own for it, which says nothing."""
    from google.protobuf.message import EncodeError

    class Whole:
        size = 10

        def ByteSize(self):  # noqa: N802
            return self.size

        def SerializeToString(self, deterministic):  # noqa: N802
            raise EncodeError("Failed to serialize proto")

    with pytest.raises(MemoryError, match="no room for the ONNX file") as found:
        module._to_bytes(Whole())
    assert "out of memory (no room for the ONNX file)" in out_of_memory(found.value)
    Whole.size = module.FILE_LIMIT + 1
    with pytest.raises(UsageError, match="larger than 2 GiB"):
        module._to_bytes(Whole())
