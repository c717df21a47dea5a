"""Preprocessing of images for a network of another library.

Images are decoded to a square, with the filter that the network was trained on: the shorter side is scaled,
and the rest of the longer one is cut off; or the whole image is squeezed, where the library does that. A
network that was trained on a smaller part of that square crops it itself.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pmal._runtime.files import read_json
from pmal.data.decoding.decode import BICUBIC, BILINEAR, LANCZOS, RESIZINGS, WHOLE
from pmal.encoders.pretrained.names import PREPROCESSOR
from pmal.errors import DataError

PROCESSOR, IMAGES = "processor_config.json", "image_processor"
"""Where newer models of images and text store it."""
SIDES = range(8, 2049)
_BILINEAR, _BICUBIC = 2, 3
_FILTERS = {1: LANCZOS, _BILINEAR: BILINEAR, _BICUBIC: BICUBIC}
"""Filters by the numbers that transformers has from Pillow."""
_SQUEEZED_FROM = 384
"""Processors with a share to crop squeeze images of at least this side instead."""


@dataclass(frozen=True)
class Preprocessing:
    """Side to which an image is decoded and cropped, normalization of each channel, and resizing."""

    side: int
    crop: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    resize: str = BILINEAR
    """How an image becomes a square, one of `decode.RESIZINGS`."""


def read_preprocessing(folder: Path) -> Preprocessing:
    """Return the preprocessing that the files of a model ask for.

    Raises:
        DataError: there is no such file, or its settings cannot be followed.
    """
    for name in (PREPROCESSOR, PROCESSOR):
        path = folder / name
        content = read_json(path) if path.is_file() else None
        if isinstance(content, dict) and name == PROCESSOR:
            content = content.get(IMAGES)
        if isinstance(content, dict):
            return parse_preprocessing(content, str(path))
    raise DataError(
        f"{folder}: holds no {PREPROCESSOR}, without which nobody knows how its images are scaled: "
        "save the image processor into the folder as well"
    )


def parse_preprocessing(content: Mapping[str, Any], where: str) -> Preprocessing:
    """Return the preprocessing from the settings of an image processor of transformers, from anyone.

    Raises:
        DataError: the settings cannot be followed.
    """
    factor = content.get("rescale_factor", 1 / 255)
    if (
        content.get("do_rescale", True) is not True
        or not _is_number(factor)
        or not math.isclose(factor, 1 / 255)
    ):
        raise DataError(f"{where}: pixels are not scaled to 0..1 (rescale_factor): choose another model")
    side, crop = _sides(content, where)
    mean, std = _three(content, "image_mean", where), _three(content, "image_std", where)
    if content.get("do_normalize", True) is not True:
        mean, std = (0.0,) * 3, (1.0,) * 3
    return checked_preprocessing(Preprocessing(side, crop, mean, std, _resize(content, side, where)), where)


def checked_preprocessing(found: Preprocessing, where: str) -> Preprocessing:
    """Return the preprocessing unchanged, or raise `DataError` if it makes no sense."""
    for name, value in (("side", found.side), ("crop", found.crop)):
        if type(value) is not int or value not in SIDES:
            raise DataError(f"{where}: {name} of images is {value}: expected {SIDES[0]} to {SIDES[-1]} px")
    if found.crop > found.side:
        raise DataError(f"{where}: {found.crop} px cannot be cropped from images of {found.side} px")
    for name, values in (("mean", found.mean), ("std", found.std)):
        numbers = isinstance(values, Sequence) and all(map(_is_number, values))
        if not numbers or len(values) != 3 or (name == "std" and min(values) <= 0):
            raise DataError(f"{where}: {name} of images is {str(values)[:40]}: expected three numbers")
    if found.resize not in RESIZINGS:
        raise DataError(f"{where}: images are resized by {str(found.resize)[:40]!r}, which is not done here")
    return found


def _sides(content: Mapping[str, Any], where: str) -> tuple[int, int]:
    side = _side(content.get("size"), f"{where}: size")
    share = content.get("crop_pct")
    if share is not None:
        if not _is_number(share) or not 0.1 <= share <= 1:
            raise DataError(f"{where}: crop_pct is {str(share)[:40]}: expected a number from 0.1 to 1")
        return (side, side) if side >= _SQUEEZED_FROM else (int(side / share), side)
    if content.get("crop_size") is None or content.get("do_center_crop", True) is not True:
        return side, side
    crop = _side(content["crop_size"], f"{where}: crop_size")
    return (side if content.get("do_resize", True) is True else crop), crop


def _resize(content: Mapping[str, Any], side: int, where: str) -> str:
    """Return the filter, and whether the image is squeezed: to a height and a width, with nothing cut off."""
    kind = str(content.get("image_processor_type") or content.get("feature_extractor_type"))
    number = content.get("resample", _BILINEAR if kind.startswith("ViT") else _BICUBIC)
    if type(number) is not int or number not in _FILTERS:
        raise DataError(f"{where}: resample is {str(number)[:40]}: expected {', '.join(map(str, _FILTERS))}")
    size, share = content.get("size"), content.get("crop_pct")
    cropped = content.get("crop_size") is not None and content.get("do_center_crop", True) is True
    squeezed = share is None and not cropped and not (isinstance(size, dict) and "shortest_edge" in size)
    large = share is not None and side >= _SQUEEZED_FROM
    return _FILTERS[number] + (WHOLE if squeezed or large else "")


def _side(value: Any, where: str) -> int:
    """Return the side of a square: 224, {shortest_edge: 224} or {height: 224, width: 224}."""
    if isinstance(value, dict):
        sides = {value[name] for name in ("shortest_edge", "height", "width") if type(value.get(name)) is int}
        value = sides.pop() if len(sides) == 1 else value
    if type(value) is not int:
        raise DataError(f"{where} is {str(value)[:60]}: expected the side of a square")
    return value


def _three(content: Mapping[str, Any], name: str, where: str) -> tuple[float, ...]:
    values = content.get(name)
    if not isinstance(values, list) or not all(map(_is_number, values)):
        raise DataError(f"{where}: {name} is {str(values)[:40]}: expected three numbers")
    return tuple(float(value) for value in values)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)
