"""Features of images by a frozen network, computed once for each image and cached by its content's digest.

A run needs them instead of pixels, so images are decoded one block at a time and not kept.

N images, D features.
"""

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pmal._runtime.devices import full_precision
from pmal._runtime.processes.launch import usable_cores
from pmal._runtime.progress import Advance
from pmal._runtime.session import Session
from pmal._runtime.tensors import has_tensors, load_tensors, save_tensors
from pmal.data.decoding.fitting import BadSample, fitting_reader, listed, try_all
from pmal.data.feeding.batches import ResidentImages
from pmal.data.feeding.parts import Part, set_aside
from pmal.data.samples import BadImage, EncodedStore, Pixels, Samples
from pmal.encoders.pretrained.backbone import Backbone, backbone_digest

BLOCK = {"cpu": 32, "cuda": 256}
"""Images decoded and embedded at a time, by device."""

Digest = bytes
Read = Pixels | str
"""Pixels of an image, or the reason why it cannot be read."""


class FeatureImages(ResidentImages):
    """Features (N, D, 1, 1) in place of images; the digest is that of the images' content."""

    def __init__(self, features_ND: Tensor, origin: str, device: torch.device) -> None:
        super().__init__(features_ND[:, :, None, None], device)
        self._fingerprint = origin


class FeatureCache:
    """Features by the digest of their image, in memory and in a file."""

    def __init__(self, backbone: Backbone, path: Path, session: Session, *, write: bool) -> None:
        """Load what the file has of this backbone; with `write`, new features are saved there too."""
        self.path, self.session, self.write = path, session, write
        self.origin = backbone_digest(backbone)
        self._row_of: dict[Digest, int] = {}
        self._features_MD = torch.zeros(0, backbone.num_features)
        self._saved, self._saved_at = 0, time.monotonic()
        if has_tensors(path, session.ranks):
            tensors, about = load_tensors(path, session.ranks)
            if about.get("backbone") == self.origin:
                self._features_MD = tensors["features"]
                self._row_of = {bytes(digest): row for row, digest in enumerate(tensors["digests"].numpy())}
                self._saved = len(self)

    def __len__(self) -> int:
        return len(self._row_of)

    def __contains__(self, digest: Digest) -> bool:
        return digest in self._row_of

    def features(self, digests: Sequence[Digest]) -> Tensor:
        """Return the features (N, D) of these images, all of which must be in the cache."""
        return self._features_MD[torch.tensor([self._row_of[digest] for digest in digests], dtype=torch.long)]

    def make_room(self, count: int) -> None:
        """Reserve memory for `count` new images.

        Rows that stay must not be allocated between blocks of pixels that are freed: the allocator could not
        return the memory of those blocks, and a run would grow by the size of its pixels.
        """
        needed = len(self) + count
        if needed > len(self._features_MD):
            grown_MD = torch.zeros(needed, self._features_MD.shape[1])
            grown_MD[: len(self)] = self._features_MD[: len(self)]
            self._features_MD = grown_MD

    def add(self, digests: Sequence[Digest], features_BD: Tensor) -> None:
        """Add features; the file is saved from time to time, so that a killed process loses little."""
        new = {digest: b for b, digest in enumerate(digests) if digest not in self}
        self.make_room(len(new))
        first = len(self)
        self._features_MD[first : first + len(new)] = features_BD[[*new.values()]]
        self._row_of |= {digest: first + place for place, digest in enumerate(new)}
        alone = self.session.ranks.size == 1  # several processes save together, at the end
        if alone and time.monotonic() - self._saved_at >= self.session.resources.checkpoint_seconds:
            self.save()

    def save(self) -> None:
        """Write all features to the file, unless nothing is new."""
        if not self.write or len(self) == self._saved:
            return
        digests = np.frombuffer(b"".join(self._row_of), np.uint8).reshape(len(self), -1)
        tensors = {"digests": torch.from_numpy(digests.copy()), "features": self._features_MD[: len(self)]}
        save_tensors(self.path, tensors, {"backbone": self.origin}, self.session.ranks)
        self._saved, self._saved_at = len(self), time.monotonic()


def open_features(
    name: str, samples: Samples, backbone: Backbone, cache: FeatureCache, session: Session
) -> Part:
    """Return a part whose images are features; those that are not in the cache are added to it.

    Several processes share the work and get all results.

    Raises:
        DataError: too many images are unreadable. A few are only set aside.
    """
    ranks = session.ranks
    own = samples.at(np.arange(len(samples))[ranks.share(len(samples))])
    with session.display.stage(f"embedding {name}", len(samples), "images") as advance:
        try:
            digests, bad = _embed_missing(own, backbone, cache, ranks.for_all(advance))
        finally:
            if ranks.size == 1:
                cache.save()
    rows_MD = cache.features(digests)
    features_ND = ranks.gather_rows(rows_MD, ranks.gather(len(rows_MD)))
    everything = [bytes.fromhex(one) for part in ranks.gather([d.hex() for d in digests]) for one in part]
    if ranks.size > 1:
        cache.add(everything, features_ND)
        cache.save()
    readable, unreadable = set_aside(name, samples, bad, session)
    origin = hashlib.sha256(cache.origin.encode() + b"".join(everything)).hexdigest()
    return Part(readable, FeatureImages(features_ND, origin, session.device), unreadable)


def _embed_missing(
    samples: Samples, backbone: Backbone, cache: FeatureCache, advance: Advance
) -> tuple[list[Digest], list[BadSample]]:
    """Return the digests of the readable samples, now all in the cache, and the unreadable samples."""
    digests, reasons = _digests(samples)
    first_of: dict[Digest, int] = {}
    for position, digest in digests.items():
        if digest not in cache:
            first_of.setdefault(digest, position)
    missing = list(first_of.values())
    cache.make_room(len(missing))
    advance(len(samples) - len(missing))
    for positions, pixels in _decoded(samples, missing, backbone):
        found = {p: one for p, one in zip(positions, pixels, strict=True) if not isinstance(one, str)}
        reasons |= {p: one for p, one in zip(positions, pixels, strict=True) if isinstance(one, str)}
        if found:
            cache.add([digests[p] for p in found], _embed(backbone, np.stack([*found.values()])))
        advance(len(positions))
    for position, digest in digests.items():
        if digest not in cache:  # the same bytes as an image that could not be read
            reasons[position] = reasons[first_of[digest]]
    kept = [digest for position, digest in digests.items() if position not in reasons]
    return kept, listed(samples, sorted(reasons.items()))


@torch.no_grad()
def _embed(backbone: Backbone, pixels_BHWC: Pixels) -> Tensor:
    device = next(backbone.parameters()).device
    images_BCHW = torch.from_numpy(pixels_BHWC).permute(0, 3, 1, 2).to(device)
    with full_precision():
        features_BD: Tensor = backbone(images_BCHW)
    return features_BD.float().cpu()


def _decoded(
    samples: Samples, positions: Sequence[int], backbone: Backbone
) -> Iterator[tuple[Sequence[int], list[Read]]]:
    """Yield blocks of positions and what was read there; meanwhile the next block is read."""
    read = fitting_reader(samples, backbone.image_shape)
    size = BLOCK[next(backbone.parameters()).device.type]

    with ThreadPoolExecutor(usable_cores()) as pool:
        ahead: list[tuple[Sequence[int], list[Future[Read]]]] = []
        for start in range(0, len(positions), size):
            block = positions[start : start + size]
            ahead.append((block, [pool.submit(_or_reason, read, position) for position in block]))
            if len(ahead) > 1:
                done, futures = ahead.pop(0)
                yield done, [future.result() for future in futures]
        for done, futures in ahead:
            yield done, [future.result() for future in futures]


def _or_reason(read: Callable[[int], Pixels], position: int) -> Read:
    try:
        return read(position)
    except BadImage as reason:
        return str(reason)


def _digests(samples: Samples) -> tuple[dict[int, Digest], dict[int, str]]:
    """Return by position, in order, the digest of what can be read, and why the rest cannot."""
    found: dict[int, Digest] = {}

    def keep(position: int) -> None:
        found[position] = _digest(samples, position)

    reasons = try_all(len(samples), keep, 0, None)
    return dict(sorted(found.items())), dict(reasons)


def _digest(samples: Samples, position: int) -> Digest:
    store, row = samples.store, int(samples.ids[position])
    if isinstance(store, EncodedStore):
        return hashlib.sha256(store.encoded(row)).digest()
    pixels = store.read(row)
    return hashlib.sha256(str(pixels.shape).encode() + np.ascontiguousarray(pixels).tobytes()).digest()
