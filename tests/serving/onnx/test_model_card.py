"""The card says what the file is, and its example runs."""

import io
import itertools
import json
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from pmal.data.decoding.decode import decode_fitted, encode_png
from pmal.rejection.model import Rule
from pmal.serving.onnx.exporting import describe_header
from pmal.serving.onnx.model_card import model_card
from pmal.serving.onnx.parity import Parity
from tests.serving.exports import exported
from tests.serving.tiny_model import make_model, pictures_of

pytestmark = pytest.mark.slow

ESTIMATE = {"value": 0.9, "low": 0.85, "high": 0.95}
METRICS = {
    "about": {
        "source": "`photos` | <b>",
        "split": "all/0",
        "known_classes": 3,
        "unknown_classes": 1,
        "method": "pmal",
        "encoder": "small",
        "epochs": 1,
        "augmentation": "none",
        "seed": 0,
    },
    "accuracy": ESTIMATE,
    "known_images": 1200,
    "unknown_images": 34,
    "scores": {"distance": {"auroc": ESTIMATE, "fpr95": ESTIMATE, "oscr": ESTIMATE}},
    "decision": {"score": "distance", "accept": 0.95, "known_accepted": 0.95, "unknown_rejected": 0.5},
}

SAME = Parity(images=48, compared_on="some images", score_difference=1e-6, decisions_differ=0)


def card(name="distance", metrics=METRICS, **changes):
    model, found = exported(name)
    header = replace(found.header, **changes)
    return model_card("m.onnx", header, found.parity, metrics, model.reference is not None)


def test_it_has_figures_threshold_limits_and_room_for_a_license():
    text = card()
    assert "Accuracy 90.0 [85.0, 95.0] on 1,200 known test images" in text
    assert "AUROC 90.0" in text
    assert "rejects 50.0 % of the unknown ones" in text
    assert "accepts at least 95 % of known images on average; with 60 held-out images, this thresh" in text
    assert "accepts 89.9 to 98.6 % (90 % range)" in text
    assert "every decision the same" in text
    assert "To be filled in" in text[text.index("## License") :]
    assert "Not tested on" in text


def test_figures_of_another_rule_are_left_out():
    assert "At the threshold" not in card(accept=0.5)
    assert "AUROC" not in card(score="logit")
    without = card(metrics=None)
    assert "Not measured" in without
    assert "No figures on unknown classes" in without


def test_classes_added_later_are_said_to_be_untested():
    assert "in none of the figures: `noise`" in card("added")
    assert "to the prototypes" not in card("softmax")


def written(rule, file="m.onnx", metrics=METRICS, parity=SAME, **changes):
    """The card of a model that nobody exports."""
    model = make_model(rule, channels=changes.pop("channels", 1))
    return model_card(file, replace(describe_header(model), **changes), parity, metrics, prototypes=True)


def test_figures_at_the_threshold_are_those_of_this_rule_alone():
    assert "At the threshold" in written(Rule("distance", 0.95))
    both = METRICS | {"scores": {**METRICS["scores"], "logit": METRICS["scores"]["distance"]}}
    for rule in (Rule("logit", 0.95), Rule("distance", 0.9), Rule("distance", 0.95, per_class=True)):
        assert "At the threshold" not in written(rule, metrics=both)
    assert "by score logit: AUROC 90.0" in written(Rule("logit", 0.95), metrics=both)
    closed = METRICS | {"decision": {"score": "distance", "accept": 0.95, "known_accepted": 0.951}}
    assert "accepts 95.1 % of the known test images.\n" in written(Rule("distance"), metrics=closed)


def test_without_unknown_classes_the_card_says_so():
    assert "No figures on unknown classes" not in written(Rule("distance"))
    assert "No figures on unknown classes" in written(Rule("distance"), metrics=METRICS | {"scores": {}})


def test_thresholds_decisions_and_images_are_described_as_they_are():
    assert "is above 0.5: " in written(Rule("distance", threshold=0.5))
    assert "is above 0.25 to 0.75, by class: " in written(Rule("distance"), thresholds=(0.75, 0.25, 0.5))
    assert "2 decisions at the threshold differ" in written(
        Rule("distance"), parity=replace(SAME, decisions_differ=2)
    )
    assert "uint8 gray images of 12 px" in written(Rule("distance"))
    assert "uint8 color images of 12 px" in written(Rule("distance"), channels=3)


def test_a_file_with_an_odd_name_can_be_asked_as_the_card_says():
    text = written(Rule("distance"), file="my model;ls.onnx", note="two\nlines", pmal="1\n2")
    assert "pmal predict 'my model;ls.onnx' image.png\n" in text
    assert "InferenceSession('my model;ls.onnx', options)" in text
    assert "two\\nlines" in text
    assert "pmal 1\\n2." in text


def test_odd_names_stay_names():
    text = card(class_names=("<script>alert(1)</script>", "a`b", "two\nlines", " "))
    assert "`<script>alert(1)</script>`, `` a`b ``, `two\\nlines`, `   `" in text


@pytest.mark.parametrize(("name", "channels"), [("distance", 1), ("softmax", 3)])
def test_its_example_runs_as_it_stands(tmp_path, name, channels):
    (tmp_path / "m.onnx").write_bytes(exported(name)[1].data)
    picture = pictures_of(0, 1, seed=7, channels=channels)[0]
    (tmp_path / "image.png").write_bytes(encode_png(picture.permute(1, 2, 0).numpy()))
    [code] = re.findall(r"```python\n(.*?)```", card(name), re.S)
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found, score, threshold = done.stdout.rsplit(maxsplit=2)
    assert found == ("cat" if name == "distance" else found)
    assert (float(score) <= float(threshold)) == (found != "unknown")


def example(name):
    """The card's lines of Python."""
    [code] = re.findall(r"```python\n(.*?)```", card(name), re.S)
    return code


@pytest.mark.parametrize(("name", "kind"), [("distance", "PNG"), ("softmax", "JPEG")])
def test_its_example_says_what_predict_says_of_an_image_of_another_size(tmp_path, call, name, kind):
    (tmp_path / "m.onnx").write_bytes(exported(name)[1].data)
    Image.fromarray(colors(61, 47)).save(tmp_path / "image.png", kind, exif=orientation(6))
    done = subprocess.run(
        [sys.executable, "-c", example(name)], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    found, score, threshold = done.stdout.rsplit(maxsplit=2)
    code, out, error = call("predict", tmp_path / "m.onnx", tmp_path / "image.png", "--json")
    assert code == 0, error
    [answer] = json.loads(out)["answers"]
    assert (found, float(score), float(threshold)) == (
        answer["class"],
        answer["score"],
        answer["threshold"],
    )


def colors(width, height):
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


def orientation(number):
    exif = Image.Exif()
    exif[0x0112] = number
    return exif


def files_of_all_kinds():
    """Encoded images that are decoded in different ways, by what is special about them."""
    large = Image.fromarray(colors(123, 86))
    for number in range(1, 9):
        yield f"jpeg {number}", encoded(large, "JPEG", exif=orientation(number))
        yield f"tiff {number}", encoded(large, "TIFF", exif=orientation(number))
    yield "cmyk", encoded(large.convert("CMYK"), "JPEG")
    yield "as it is", encoded(large.crop((0, 0, 12, 12)), "PNG")
    yield "cropped", encoded(large.crop((0, 0, 12, 17)), "PNG")
    yield "enlarged", encoded(large.crop((0, 0, 7, 5)), "PNG")
    clear = large.copy()
    clear.putalpha(large.convert("L"))
    for mode in ("RGBA", "LA"):
        yield mode, encoded(clear.convert(mode), "PNG")
    yield "palette", encoded(large.quantize(16), "PNG", transparency=3)
    yield "one bit", encoded(large.convert("1"), "PNG")
    wide = Image.fromarray(np.arange(123 * 86, dtype=np.uint16).reshape(86, 123) * 6)
    yield "16 bits", encoded(wide, "PNG")
    yield "16 bits, one clear", encoded(wide, "PNG", transparency=600)


def encoded(image, kind, **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


@pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("RGB", 3)])
def test_its_example_reads_pixels_as_predict_does(mode, channels):
    names = {}
    exec(example("distance").partition("session =")[0], names)  # noqa: S102
    for kind, data in files_of_all_kinds():
        for side, resize in itertools.product((12, 20, 40), ("bilinear", "bicubic", "lanczos, whole")):
            found = names["read_pixels"](io.BytesIO(data), side, mode, resize).reshape(side, side, channels)
            expected = decode_fitted(data, side, channels, resize)
            np.testing.assert_array_equal(found, expected, err_msg=f"{kind}, {side} px, {resize}")
