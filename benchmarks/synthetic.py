"""A set in the shape of ImageNet at any scale: JPEGs in class folders, long-tailed where asked.

    python benchmarks/synthetic.py OUT --classes 1000 --most 1280 --least 5 --distinct 4
    pmal data convert OUT OUT.parquet     # the same as one Parquet file

Pictures are noise with the spectrum of photographs, about as many bytes each, in colors and grain of their
class, so that there is something to learn. Of each class `--distinct` pictures are drawn; more are further
names of these files, which takes no room and decodes as slowly.
"""

import argparse
import io
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

TAIL_POWER = 0.62
"""With 1,000 classes of 1,280 to 5 images it gives ImageNet-LT's 116,000 in total."""


def long_tail(classes: int, most: int, least: int) -> list[int]:
    """Images per class, the largest first.

    >>> long_tail(5, 40, 5), sum(long_tail(1000, 1280, 5))
    ([40, 17, 10, 7, 5], 115562)
    """
    place = np.linspace(0, 1, classes) ** TAIL_POWER
    return [round(most * (least / most) ** share) for share in place.tolist()]


def draw_picture(random: np.random.Generator, width: int, height: int, label: int = 0) -> Image.Image:
    """Octaves of noise, the finer the weaker, around a color of the class."""
    style = np.random.default_rng(label)
    color, strongest = style.uniform(70, 185, 3), style.integers(5, 8)
    picture = np.broadcast_to(color, (1, 1, 3)).astype(np.float32)
    for octave in range(8, -1, -1):
        rows, columns = -(-height // 2**octave), -(-width // 2**octave)
        strength = (18 if octave == strongest else 12) * 1.1**octave
        light, tint = random.standard_normal((rows, columns, 1)), random.standard_normal((rows, columns, 3))
        noise = strength * (light + 0.3 * tint)
        picture = _enlarged(picture, columns, rows) + noise.astype(np.float32)
    return Image.fromarray(picture.clip(0, 255).astype(np.uint8))


def encode_jpeg(picture: Image.Image) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def write_pictures(folder: str, count: int) -> list[str]:
    """Photographs of 500 x 375 px, by their names in the folder."""
    random = np.random.default_rng(0)
    for number in range(count):
        path = Path(folder) / f"{number}.JPEG"
        path.write_bytes(encode_jpeg(draw_picture(random, 500, 375, number)))
    return [f"{number}.JPEG" for number in range(count)]


def write_folder(
    root: Path,
    per_class: list[int],
    *,
    size: tuple[int, int] = (500, 375),
    test_per_class: int = 50,
    distinct: int = 0,
    seed: int = 0,
) -> list[str]:
    """`root`/train/<wnid> and `root`/val/<wnid>; the wnids. A third of the pictures is in upright format."""
    names = [f"n{label:08d}" for label in range(len(per_class))]

    def write_class(label: int) -> None:
        name, random = names[label], np.random.default_rng((seed, label))
        for part, wanted in (("train", per_class[label]), ("val", test_per_class)):
            folder = root / part / name
            folder.mkdir(parents=True)
            for number in range(wanted):
                file = folder / f"{name}_{number}.JPEG"
                if distinct and number >= distinct:
                    os.link(folder / f"{name}_{number % distinct}.JPEG", file)
                    continue
                width, height = size if number % 3 else size[::-1]
                file.write_bytes(encode_jpeg(draw_picture(random, width, height, label)))

    with ThreadPoolExecutor() as pool:
        list(pool.map(write_class, range(len(names))))
    return names


def _enlarged(noise: NDArray[np.float32], width: int, height: int) -> NDArray[np.float32]:
    channels = [
        Image.fromarray(noise[:, :, c]).resize((width, height), Image.Resampling.BICUBIC) for c in range(3)
    ]
    return np.stack([np.asarray(channel) for channel in channels], axis=2)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--most", type=int, default=1280, help="images of the largest class")
    parser.add_argument("--least", type=int, default=1280, help="images of the smallest class")
    parser.add_argument("--test", type=int, default=50, help="test images of each class")
    parser.add_argument("--size", type=int, nargs=2, default=(500, 375), help="width and height")
    parser.add_argument("--distinct", type=int, default=0, help="pictures drawn per class; 0: all")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    per_class = long_tail(options.classes, options.most, options.least)
    write_folder(
        options.out,
        per_class,
        size=tuple(options.size),
        test_per_class=options.test,
        distinct=options.distinct,
        seed=options.seed,
    )
    print(f"{options.out}: {sum(per_class):,} training images of {options.classes} classes")


if __name__ == "__main__":
    main()
