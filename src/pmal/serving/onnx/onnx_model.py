"""An exported model, asked by onnxruntime. Needs numpy and Pillow next to it, and no torch.

B images, K classes, T prototypes of the class that has most.
"""

import copy
import importlib
import json
import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pmal._runtime.progress import Display
from pmal._runtime.text import printable
from pmal.data.decoding.decode import BILINEAR, RESIZINGS
from pmal.data.decoding.fitting import ImageShape
from pmal.data.samples import Pixels, Vectors
from pmal.errors import DataError, UsageError
from pmal.serving.answers.answer_rows import (
    Member,
    Row,
    describe_rows,
    json_number,
    strongest_prototypes,
    unicode_name,
)
from pmal.serving.answers.image_files import BadFile
from pmal.serving.answers.row_files import answer_paths
from pmal.serving.onnx.onnx_file import UNSEALED, check_seal, read_metadata

FORMAT, VERSION = "pmal-onnx", 2
UNSEALED_VERSION = 1
"""The version that pmal 0.1 wrote, without a checksum."""
DIGEST = "sha256"
"""The entry that holds the checksum of the file."""
FILE_LIMIT = (1 << 31) - 1
"""Bytes of a file at most: no protobuf message can be larger."""
BATCH = 64
"""Images that a runtime gets at a time, at most: their maps fit into memory with any network."""
BATCH_NUMBERS = 1 << 25
"""Numbers of the prototypes' answers (images x classes x channels) at a time: a quarter of a GiB."""
INPUT, ROWS = "images", "embeddings"
"""What the input is called: pixels, or embeddings of another model."""
ACCEPT = "accept"
"""The input that may be left out: another acceptance rate."""

Outputs = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class OnnxHeader:
    """What the metadata of an exported file say."""

    class_names: tuple[str, ...]
    """The network's classes, then those added since."""
    own_classes: int
    image_size: int
    channels: int
    score: str
    accept: float | None
    """None: the threshold was set, not calibrated."""
    per_class: bool
    thresholds: tuple[float, ...]
    far_threshold: float
    """Threshold of the typicality score; infinite if the model does not look at layers."""
    note: str
    """What the threshold promises."""
    prototypes: tuple[tuple[Member, ...], ...]
    """The prototypes of each class by rank; empty for a model that has none."""
    pmal: str
    """The version that wrote it."""
    resize: str = BILINEAR
    """How an image becomes a square."""

    @property
    def takes_rows(self) -> bool:
        """Whether the input is embeddings of as many numbers as `channels` says: each is one pixel."""
        return self.image_size == 1

    @property
    def input_name(self) -> str:
        """Name of the input: embeddings or images."""
        return ROWS if self.takes_rows else INPUT

    @property
    def input_shape(self) -> list[int]:
        """Shape of one sample."""
        return [self.channels] if self.takes_rows else [self.channels, self.image_size, self.image_size]

    def to_metadata(self) -> dict[str, str]:
        """Return text as it is, everything else as JSON; infinite numbers are text there."""
        return {
            "format": FORMAT,
            "version": str(VERSION),
            DIGEST: UNSEALED,
            "pmal": self.pmal,
            "classes": json.dumps(self.class_names),
            "own_classes": str(self.own_classes),
            "image_size": str(self.image_size),
            "channels": str(self.channels),
            "resize": self.resize,
            "score": self.score,
            "accept": json.dumps(self.accept),
            "per_class": json.dumps(self.per_class),
            "thresholds": json.dumps([json_number(value) for value in self.thresholds]),
            "far_threshold": json.dumps(json_number(self.far_threshold)),
            "note": self.note,
            "prototypes": json.dumps(self.prototypes),
        }

    @classmethod
    def from_metadata(cls, found: Mapping[str, str]) -> "OnnxHeader":
        """Return what `to_metadata` gave; anything else is rejected."""
        if found.get("format") != FORMAT:
            raise DataError("not a model that `pmal export` wrote")
        if found.get("version") not in (str(UNSEALED_VERSION), str(VERSION)):
            version = found.get("version", "")[:20]
            raise DataError(f"format version {version!r}, not {VERSION}: use the pmal that wrote it")
        try:
            header = cls(
                class_names=tuple(map(str, json.loads(found["classes"]))),
                own_classes=int(found["own_classes"]),
                image_size=int(found["image_size"]),
                channels=int(found["channels"]),
                score=found["score"],
                accept=_share(json.loads(found["accept"])),
                per_class=bool(json.loads(found["per_class"])),
                thresholds=tuple(map(float, json.loads(found["thresholds"]))),
                far_threshold=float(json.loads(found["far_threshold"])),
                note=found["note"],
                prototypes=tuple(tuple(map(_member, ranked)) for ranked in json.loads(found["prototypes"])),
                pmal=found["pmal"],
                resize=found.get("resize", BILINEAR),  # files of an older pmal have none
            )
        except (KeyError, TypeError, ValueError, RecursionError):
            raise DataError("its metadata are not those that `pmal export` writes: export it again") from None
        header._check()
        return header

    def _check(self) -> None:
        count = len(self.class_names)
        sound = 0 < self.own_classes <= count == len(self.thresholds)
        sound = sound and len(self.prototypes) in (0, count) and self.resize in RESIZINGS
        images = self.channels in (1, 3) and 8 <= self.image_size <= 4096
        if (
            not sound
            or not (images or (self.takes_rows and self.channels > 0))
            or np.isnan([*self.thresholds, self.far_threshold]).any()
        ):
            raise DataError("its metadata contradict each other: export it again")


class OnnxModel:
    """An exported model, ready to answer."""

    def __init__(self, data: bytes, name: str, threads: int = 0) -> None:
        """Open an exported model. Nothing of a file that is not ours is run.

        Args:
            data: the file itself.
            name: what errors call it.
            threads: 0 for one per core.
        """
        self.name = name
        try:
            metadata = read_metadata(data)
            self.header = OnnxHeader.from_metadata(metadata)
            if metadata["version"] == str(VERSION):
                check_seal(data, metadata.get(DIGEST, ""))
        except DataError as error:
            raise DataError(f"{name}: {error}") from None
        self._session = _open_session(data, name, threads)
        optional = {value.name: value for value in self._session.get_overridable_initializers()}
        self.takes_accept = ACCEPT in optional and optional[ACCEPT].type == "tensor(double)"
        self.accept: float | None = None
        self._outputs = [output.name for output in self._session.get_outputs()]
        self._most = max(1, BATCH_NUMBERS // (len(self.header.class_names) * self._check_signature()))

    @classmethod
    def load(cls, path: Path) -> "OnnxModel":
        """Return the model of a file, which is rejected if it is no exported model."""
        return cls(_read(path), str(path))

    def with_accept(self, accept: float) -> "OnnxModel":
        """Return the same model with another acceptance rate; refused if its file has none."""
        if not 0 < accept < 1:
            raise UsageError(f"accept is {accept}: pass a share above 0 and below 1, such as 0.95")
        if not self.takes_accept:
            why = "has a threshold that was set" if self.header.accept is None else "is of an older pmal"
            raise UsageError(f"--accept: {self.name} {why}: give --accept to `pmal export`")
        changed = copy.copy(self)
        changed.accept = accept
        return changed

    def run(self, images_BCHW: Pixels | Vectors, batch: int = BATCH) -> Outputs:
        """Return all outputs for at least one uint8 image of the model's size and channels.

        Embeddings are float32 (B, D, 1, 1).
        """
        batch, name = min(batch, self._most), self.header.input_name
        given = images_BCHW.reshape(len(images_BCHW), *self.header.input_shape)
        starts = range(0, len(given), batch)
        rate = {} if self.accept is None else {ACCEPT: np.array(self.accept, dtype=np.float64)}
        try:
            found = [self._session.run(None, {name: given[at : at + batch], **rate}) for at in starts]
        except Exception as error:  # see _open_session
            raise DataError(f"{self.name}: onnxruntime fails on it ({_reason(error)})") from None
        columns = zip(*found, strict=True)
        return {name: np.concatenate(parts) for name, parts in zip(self._outputs, columns, strict=True)}

    def describe(self, images_BCHW: Pixels | Vectors, names: Sequence[str], top: int) -> list[dict[str, Any]]:
        """Return what the model says about each image, as `describe_answers` of the other models has it."""
        return describe_rows(self.header.class_names, self._rows(self.run(images_BCHW), names, top))

    def answer_files(
        self, paths: Sequence[str], errors: list[BadFile], display: Display, top: int
    ) -> Generator[list[dict[str, Any]], None, None]:
        """Yield answers block by block; what cannot be read is added to `errors`."""
        shape = ImageShape(self.header.image_size, self.header.channels, self.header.resize)
        return answer_paths(
            paths, shape, errors, display, lambda images, names: self.describe(images, names, top)
        )

    def about(self) -> dict[str, Any]:
        """Return what is shown next to the answers: whose they are, and by which rule."""
        header = self.header
        return {
            "folder": unicode_name(self.name),
            "classes": len(header.class_names),
            "score": printable(header.score),
            "accept": header.accept if self.accept is None else self.accept,
            "per_class": header.per_class,
            "note": printable(header.note if self.accept is None else self._asked_note()),
        }

    def _asked_note(self) -> str:
        return (
            f"asked to accept {100 * (self.accept or 0):.10g} % of known images; exported: {self.header.note}"
        )

    def _rows(self, found: Outputs, names: Sequence[str], top: int) -> Iterator[Row]:
        header, count = self.header, len(self.header.class_names)
        label_B, nearest_B = found["label"], found["nearest"]
        single = [found[name] for name in ("label", "nearest", "score", "threshold", "typicality", "p_value")]
        if any(column.shape != (len(names),) for column in single):
            raise DataError(f"{self.name}: does not answer once for each image: export it again")
        if not ((label_B >= -1) & (label_B < count) & (nearest_B >= 0) & (nearest_B < count)).all():
            raise DataError(f"{self.name}: answers with classes that it does not have: export it again")
        own_B = np.minimum(nearest_B, header.own_classes - 1)
        probability_B = np.take_along_axis(found["probabilities"], own_B[:, None], axis=1)[:, 0]
        shown = header.prototypes and top
        # A file of an older pmal has one for all.
        far_limit_B = found.get("typicality_threshold", np.full(len(names), header.far_threshold))
        for b, name in enumerate(names):
            k = int(nearest_B[b])
            probability = float(probability_B[b]) if k < header.own_classes else None
            weights = found["attention"][b].tolist() if shown else []
            prototypes = strongest_prototypes(header.prototypes[k], weights, top) if shown else []
            near = float(found["score"][b]), float(found["threshold"][b])
            far = float(found["typicality"][b]), float(far_limit_B[b]), float(found["p_value"][b])
            yield Row(name, int(label_B[b]), k, *near, probability, *far, prototypes)

    def _check_signature(self) -> int:
        """Return the channels of an embedding, once the graph fits the metadata.

        The metadata may be ours and the graph not.
        """
        header, inputs = self.header, self._session.get_inputs()
        outputs = {output.name: output for output in self._session.get_outputs()}
        wanted = {
            "label",
            "nearest",
            "score",
            "threshold",
            "probabilities",
            "embedding",
            "typicality",
            "p_value",
        }
        wanted |= {"attention"} if header.prototypes else set()
        kind = "tensor(float)" if header.takes_rows else "tensor(uint8)"
        sound = len(inputs) == 1 and inputs[0].name == header.input_name and inputs[0].type == kind
        sound = sound and inputs[0].shape[1:] == header.input_shape and wanted <= set(outputs)
        sound = sound and outputs["probabilities"].shape[1:] == [header.own_classes]
        widths = {name: (output.shape or [None])[-1] for name, output in outputs.items()}
        least = {"embedding": 1} | (
            {"attention": max(map(len, header.prototypes))} if header.prototypes else {}
        )
        if not sound or not all(
            isinstance(widths[n], int) and widths[n] >= most for n, most in least.items()
        ):
            raise DataError(f"{self.name}: its graph does not fit its metadata: export it again")
        return int(widths["embedding"])


def _open_session(data: bytes, name: str, threads: int) -> Any:
    try:
        runtime = importlib.import_module("onnxruntime")
    except ImportError:
        raise UsageError(f"{name} needs onnxruntime: pip install onnxruntime") from None
    options = runtime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, threads
    try:
        return runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the kinds of error that onnxruntime has share no base of their own
        raise DataError(f"{name}: onnxruntime cannot run it ({_reason(error)}): export it again") from None


def _reason(error: Exception) -> str:
    return printable(" ".join(str(error).split())[:200])


def _read(path: Path) -> bytes:
    fix = "name the file that `pmal export` wrote"
    if not os.path.isfile(path):
        raise DataError(f"{path}: {'not a file' if os.path.exists(path) else 'no such file'}: {fix}")
    try:
        if os.path.getsize(path) > FILE_LIMIT:
            raise DataError(f"{path}: larger than 2 GiB: {fix}")
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: not readable ({error.strerror})") from None


def _member(entry: Any) -> Member:
    file, number = entry
    return str(file), int(number)


def _share(value: Any) -> float | None:
    return None if value is None else float(value)
