"""`pmal export`: a model as one ONNX file that needs nothing but a runtime, compared with PyTorch first."""

import contextlib
import importlib
import logging
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import pmal
from pmal._runtime.files import atomic_path, make_folder, write_text
from pmal._runtime.signals import deferred_signals
from pmal._runtime.text import printable, short_path
from pmal.errors import PmalError, UsageError, first_line
from pmal.rejection.model import OpenSetModel
from pmal.serving.onnx.decision_graph import DecisionGraph
from pmal.serving.onnx.onnx_file import seal
from pmal.serving.onnx.onnx_model import ACCEPT, FILE_LIMIT, OnnxHeader, OnnxModel
from pmal.serving.onnx.parity import Images, Parity, check_parity

FORMATS = ("onnx",)


@dataclass(frozen=True)
class Exported:
    """A graph that answers as the model does."""

    data: bytes
    header: OnnxHeader
    parity: Parity


def export_onnx(model: OpenSetModel, images: Images) -> Exported:
    """Return the file as bytes; nothing is written.

    A graph that differs from PyTorch on the images is rejected.
    """
    header = describe_header(model)
    data = build_onnx(model, header)
    return Exported(data, header, check_parity(model, OnnxModel(data, "the exported graph"), images))


def output_paths(folder: Path, out: Path | None, force: bool) -> tuple[Path, Path]:
    """Return the file, and the model card next to it.

    Default: next to the folder of the model, by its name.
    """
    folder = folder.resolve()
    file = out or folder.with_name(f"{folder.name}.onnx")
    if file.suffix != ".onnx":
        raise UsageError(f"--out {file}: the name must end in .onnx")
    if folder in (file.resolve(), *file.resolve().parents):
        raise UsageError(f"--out {file} is in the folder of the model: choose another place")
    card = file.with_suffix(".md")
    for path in (file, card):
        if path.is_dir():
            raise UsageError(f"{path} is a folder: choose another --out")
        if path.exists() and not force:
            raise UsageError(f"{path} exists: choose another --out, or pass --force")
    make_folder(file.parent)
    return file, card


def write_export(file: Path, card: Path, data: bytes, text: str) -> None:
    """Write each file whole or not at all, and the card only once there is room for the file."""
    with atomic_path(file) as temporary:
        temporary.write_bytes(data)
        write_text(card, text)


def describe_header(model: OpenSetModel) -> OnnxHeader:
    """Return what the file says of itself. Fail if the model cannot decide."""
    rule, spec = model.rule, model.classifier.spec
    given = rule.threshold is not None
    gallery = model.gallery if model.reference else ()
    return OnnxHeader(
        class_names=model.class_names,
        own_classes=len(spec.class_names),
        image_size=spec.image_size,
        channels=spec.channels,
        resize=spec.image_shape.resize,
        score=model.deciding_score(),
        accept=None if given else rule.accept,
        per_class=rule.per_class and not given,
        thresholds=tuple(model.limits().tolist()),
        far_threshold=model.far_limit(),
        note=model.guarantee()[1],
        prototypes=tuple(tuple((short_path(p.file), p.id) for p in ranked) for ranked in gallery),
        pmal=pmal.__version__,
    )


def build_onnx(model: OpenSetModel, header: OnnxHeader) -> bytes:
    """Return the graph and what the file says of itself, as the bytes of an ONNX file."""
    _check_libraries()
    graph = DecisionGraph(model).eval()
    # Two images: a dimension of one would be taken for a constant.
    example = torch.zeros(2, *header.input_shape, dtype=model.classifier.spec.dtype)
    try:
        # Held back: in callbacks of weak references, of which the exporter has many, an interruption is lost.
        with _quiet_exporter(), deferred_signals(), torch.no_grad():
            given: tuple[torch.Tensor, ...] = (example,)
            names = [header.input_name]
            shapes: tuple[dict[int, Any], ...] = ({0: torch.export.Dim("batch")},)
            if graph.takes_accept:
                given, names, shapes = (example, graph.accept), [*names, ACCEPT], (*shapes, {})
            traced = torch.export.export(graph, given, dynamic_shapes=shapes)
            program = torch.onnx.export(
                traced,
                input_names=names,
                output_names=list(graph.output_names),
                dynamo=True,
                external_data=False,
                verbose=False,
            )
    except Exception as error:  # of many kinds: an encoder of the user may do anything
        spec = model.classifier.spec
        network = f"encoder {spec.network_name}, head {spec.head.name}"
        raise PmalError(f"not exported: {network} cannot be traced to ONNX ({_root(error)})") from None
    return _serialize(program, header)


def _tell_apart(program: Any) -> None:
    """Rename values within the graph that are called as an input or output is: a network may embed, too."""
    graph = program.model.graph
    ends = [*graph.inputs, *graph.outputs]
    own, names = {id(value) for value in ends}, {value.name for value in ends}
    computed = [value for node in graph for value in node.outputs]
    for value in [*computed, *graph.initializers.values()]:  # what is always the same was computed already
        if value.name in names and id(value) not in own:
            value.name = f"{value.name}.inner"


def _serialize(program: Any, header: OnnxHeader) -> bytes:
    _tell_apart(program)
    proto = program.model_proto
    if any(value.name == ACCEPT for value in proto.graph.input):
        # An input that has a value, too, may be left out.
        rate = np.array(header.accept, dtype=np.float64)
        proto.graph.initializer.append(importlib.import_module("onnx").numpy_helper.from_array(rate, ACCEPT))
    proto.producer_name, proto.producer_version = "pmal", header.pmal
    # The exporter notes where in the source each node came from, with the paths of this machine.
    for part in (proto.graph, *proto.graph.node, *proto.graph.value_info, *proto.graph.initializer):
        del part.metadata_props[:]
        part.doc_string = ""
    for part in (*proto.graph.input, *proto.graph.output):
        del part.metadata_props[:]
    del proto.metadata_props[:]
    for key, value in header.to_metadata().items():
        proto.metadata_props.add(key=key, value=value)
    return seal(_to_bytes(proto))


def _to_bytes(proto: Any) -> bytes:
    from google.protobuf.message import EncodeError

    try:
        if proto.ByteSize() > FILE_LIMIT:
            raise UsageError("not exported: larger than 2 GiB, which no ONNX file can be")
        data: bytes = proto.SerializeToString(deterministic=True)
    except EncodeError as error:  # which says nothing more
        raise MemoryError("no room for the ONNX file") from error
    return data


def _root(error: BaseException) -> str:
    """Return what began it, in one line: what the exporter says itself are hints for its developers."""
    while error.__cause__ is not None:
        error = error.__cause__
    return printable(first_line(error)[:200])


def _check_libraries() -> None:
    for name in ("onnx", "onnxscript", "onnxruntime"):
        try:
            importlib.import_module(name)
        except ImportError:
            raise UsageError(f"export needs {name}: pip install 'pmal[onnx]'") from None


@contextlib.contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Silence notes about missing libraries and skipped folds: they concern nobody."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
