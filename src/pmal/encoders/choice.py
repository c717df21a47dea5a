"""Which encoder suits images that nobody has chosen one for."""

from dataclasses import dataclass
from statistics import median

from pmal.data.samples import BadImage, Samples, VectorStore, evenly
from pmal.encoders.precomputed import OF_ROWS, PRECOMPUTED
from pmal.encoders.pretrained.names import weights_missing
from pmal.errors import UsageError

AUTO = "auto"
PHOTOS = "efficientnet_lite0"
LARGEST_SMALL = 64
"""Side in pixels up to which images are no photographs: icons, digits, the images of benchmarks."""
_PROBED = 32


@dataclass(frozen=True)
class Choice:
    """An encoder, and one line about why."""

    name: str
    why: str


def choose_encoder(samples: Samples, device: str) -> Choice:
    """Return the encoder for these samples: a pretrained one for photographs, if its weights are there."""
    if isinstance(samples.store, VectorStore):
        return Choice(PRECOMPUTED, "embeddings in the place of images")
    side, own = typical_side(samples), "small" if device == "cpu" else "oscri"
    if side <= LARGEST_SMALL:
        return Choice(own, f"images of {side} px, trained on your images alone")
    missing = weights_missing(PHOTOS)
    if missing is None:
        return Choice(PHOTOS, "pretrained on ImageNet and frozen; encoder small trains on your images alone")
    return Choice(
        "small" if device == "cpu" else "resnet18", f"trained on your images alone, because {missing}"
    )


def check_encoder(samples: Samples, name: str) -> None:
    """Refuse an encoder of images for embeddings, before anything is built of it."""
    if isinstance(samples.store, VectorStore) and name not in OF_ROWS:
        raise UsageError(
            f"{samples.store.origin}: embeddings, but encoder {name} takes images: "
            "leave encoder and recipe out, and precomputed is chosen"
        )


def typical_side(samples: Samples) -> int:
    """Return the median of the shorter sides of some images, in pixels; 0 if none can be read."""
    sides = []
    for position in evenly(len(samples), _PROBED).tolist():
        try:
            sides.append(min(samples.read(position).shape[:2]))
        except BadImage:
            continue
    return int(median(sides)) if sides else 0
