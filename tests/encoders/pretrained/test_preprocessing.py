"""What image processors of transformers ask for."""

import importlib
import json

import numpy as np
import pytest
from PIL import Image

from pmal.data.decoding.decode import decode_fitted, encode_png
from pmal.encoders.pretrained.preprocessing import parse_preprocessing, read_preprocessing
from pmal.errors import DataError
from tests.encoders.pretrained.tiny_models import IMAGES


@pytest.mark.parametrize(
    ("settings", "sides"),
    [
        ({"size": 224}, (224, 224)),
        ({"size": {"height": 224, "width": 224}}, (224, 224)),
        ({"size": {"shortest_edge": 256}, "crop_size": {"height": 224, "width": 224}}, (256, 224)),
        ({"size": {"shortest_edge": 256}, "crop_size": 224, "do_center_crop": False}, (256, 256)),
        ({"size": {"shortest_edge": 256}, "crop_size": 224, "do_resize": False}, (224, 224)),
        ({"size": {"shortest_edge": 224}, "crop_pct": 0.875}, (256, 224)),
        ({"size": {"shortest_edge": 384}, "crop_pct": 0.875}, (384, 384)),
    ],
)
def test_sides(settings, sides):
    found = parse_preprocessing({**IMAGES, **settings}, "f")
    assert (found.side, found.crop) == sides
    assert (found.mean, found.std) == ((0.4, 0.5, 0.6), (0.2, 0.25, 0.3))


@pytest.mark.parametrize(
    ("kind", "settings", "resize"),
    [
        ("vit.ViT", {"size": {"height": 32, "width": 32}}, "bilinear, whole"),
        ("bit.Bit", {"size": {"shortest_edge": 32}, "crop_size": 28}, "bicubic"),  # DINOv2
        ("clip.CLIP", {"size": {"shortest_edge": 32}, "crop_size": 32}, "bicubic"),
        ("convnext.ConvNext", {"size": {"shortest_edge": 28}, "crop_pct": 0.875}, "bicubic"),  # ResNet, too
        ("convnext.ConvNext", {"size": {"shortest_edge": 384}, "crop_pct": 0.875}, "bicubic, whole"),
        ("vit.ViT", {"size": {"height": 32, "width": 32}, "resample": 1}, "lanczos, whole"),
    ],
)
def test_pixels_are_those_of_the_processor_of_the_network(kind, settings, resize, tmp_path):
    """Against transformers itself, on an image that is no square; also if no filter is in the file."""
    family, name = kind.split(".")
    module = importlib.import_module(f"transformers.models.{family}.image_processing_pil_{family}")
    processor = getattr(module, f"{name}ImageProcessorPil")(**settings)
    processor.save_pretrained(tmp_path)
    file = tmp_path / "preprocessor_config.json"
    coarse = np.random.default_rng(0).integers(0, 256, (16, 24, 3), dtype=np.uint8)
    image = Image.fromarray(coarse).resize((96, 64), Image.Resampling.BICUBIC)
    [expected] = processor(image, return_tensors="np")["pixel_values"]
    content = json.loads(file.read_text())
    without = {name: value for name, value in content.items() if name != "resample"}
    for given in (content,) if "resample" in settings else (content, without):
        found = parse_preprocessing(given, "f")
        pixels = decode_fitted(encode_png(np.asarray(image)), found.side, 3, found.resize) / 255
        start = (found.side - found.crop) // 2
        pixels = pixels[start : start + found.crop, start : start + found.crop]
        np.testing.assert_allclose((pixels - found.mean) / found.std, expected.transpose(1, 2, 0), atol=0.02)
        assert found.resize == resize


def test_without_normalization_pixels_are_taken_from_0_to_1():
    found = parse_preprocessing({**IMAGES, "size": 32, "do_normalize": False}, "f")
    assert (found.mean, found.std) == ((0, 0, 0), (1, 1, 1))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": None}, "size is None: expected the side of a square"),
        ({"size": {"height": 224, "width": 112}}, "expected the side of a square"),
        ({"size": 10**6}, "side of images is 1000000: expected 8 to 2048 px"),
        ({"size": 224, "crop_size": 256}, "256 px cannot be cropped from images of 224 px"),
        ({"size": 224, "crop_pct": "much"}, "crop_pct is much"),
        ({"size": 224, "rescale_factor": 1.0}, "not scaled to 0..1"),
        ({"size": 224, "resample": 0}, "resample is 0: expected 1, 2, 3"),
        ({"size": 224, "image_mean": None}, "image_mean is None: expected three numbers"),
        ({"size": 224, "image_std": [0.1, 0.1]}, "std of images is .* expected three numbers"),
        ({"size": 224, "image_std": [0.1, 0.1, 0.0]}, "expected three numbers"),
    ],
)
def test_what_makes_no_sense_is_refused_by_the_name_of_its_file(settings, message):
    with pytest.raises(DataError, match=message) as caught:
        parse_preprocessing({**IMAGES, **settings}, "file")
    assert str(caught.value).startswith("file: ")


def test_newer_models_have_it_within_another_file(tmp_path):
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": {**IMAGES, "size": 32}}))
    assert read_preprocessing(tmp_path).side == 32
