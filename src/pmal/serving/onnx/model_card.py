"""The model card: what an exported file is, how good it is, and what nobody has tried, in Markdown."""

import re
import shlex
from collections.abc import Mapping
from typing import Any

from pmal._runtime.text import counted, printable
from pmal.reporting.tables import COLUMNS, with_interval
from pmal.serving.onnx.onnx_model import OnnxHeader
from pmal.serving.onnx.parity import Parity

SNIPPET = """import hashlib
import json

import numpy as np
import onnxruntime
from PIL import Image

TURNS = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}  # EXIF orientation: argument of Image.transpose


def read_pixels(file, side, mode, resize):
    \"\"\"Return the pixels that `pmal predict` sees: a square of `side` pixels.\"\"\"
    name, _, whole = resize.partition(", ")  # the filter; whole: squeezed, else the square in the middle
    with Image.open(file) as image:
        (width, height), scale = image.size, 1
        square = min(width, height)
        if image.format == "JPEG":  # a large one is decoded at 1/2, 1/4 or 1/8 of its size
            scale = next((n for n in (8, 4, 2) if n <= int(square / (1.5 * side))), 1)
        if scale > 1:
            image.draft(None, (width // scale, height // scale))
        image.load()
        turn = image.getexif().get(0x0112)
        plain = on_white(image)
    if scale == 1:
        plain = plain.transpose(TURNS[turn]) if turn in TURNS else plain
        left, top = (plain.width - square) // 2, (plain.height - square) // 2
    else:  # the same square of the image before it is turned
        left = (width - square + (turn in (2, 3, 7, 8))) // 2
        top = (height - square + (turn in (3, 4, 6, 7))) // 2
    part = (left, top, left + square, top + square)
    if whole:
        part = (0, 0, width, height) if scale > 1 else (0, 0, *plain.size)
    box = [edge / scale for edge in part]
    small = plain.resize((side, side), Image.Resampling[name.upper()], box=box)
    if scale > 1 and turn in TURNS:
        small = small.transpose(TURNS[turn])
    return np.asarray(small.convert(mode))


def on_white(image):
    \"\"\"Return the image in gray or RGB with 8 bits a channel; what is transparent shows white.\"\"\"
    if image.mode.startswith("I"):  # 16 bits of gray
        wide, clear = np.asarray(image), image.info.get("transparency")
        gray = ((wide.astype(np.uint32) + 128) // 257).astype(np.uint8)
        return Image.fromarray(gray if clear is None else np.where(wide == clear, np.uint8(255), gray))
    color = "L" if image.mode in ("1", "L", "LA", "La") else "RGB"
    if not image.has_transparency_data:
        return image.convert(color)
    layered = image.convert(color + "A")
    white = Image.new(color, image.size, "white")
    return Image.composite(layered.convert(color), white, layered.getchannel("A"))


options = onnxruntime.SessionOptions()
options.log_severity_level = 3  # no warning that the input `accept` may be left out
session = onnxruntime.InferenceSession(FILE, options)
about = session.get_modelmeta().custom_metadata_map
with open(FILE, "rb") as file:
    whole = file.read().replace(about["sha256"].encode(), b"0" * 64)
if hashlib.sha256(whole).hexdigest() != about["sha256"]:
    raise SystemExit("the file is damaged")
classes, side = json.loads(about["classes"]), int(about["image_size"])
mode, resize = "L" if about["channels"] == "1" else "RGB", about.get("resize", "bilinear")
pixels = read_pixels("image.png", side, mode, resize)
images = pixels.reshape(1, side, side, -1).transpose(0, 3, 1, 2)
label, score, threshold = session.run(["label", "score", "threshold"], {"images": images})
print(classes[label[0]] if label[0] >= 0 else "unknown", score[0], threshold[0])
"""
"""Stands for `data.decode.decode_fitted` if pmal is not installed: the same steps in the same order."""

ROWS_SNIPPET = """import hashlib
import json

import numpy as np
import onnxruntime

options = onnxruntime.SessionOptions()
options.log_severity_level = 3  # no warning that the input `accept` may be left out
session = onnxruntime.InferenceSession(FILE, options)
about = session.get_modelmeta().custom_metadata_map
with open(FILE, "rb") as file:
    whole = file.read().replace(about["sha256"].encode(), b"0" * 64)
if hashlib.sha256(whole).hexdigest() != about["sha256"]:
    raise SystemExit("the file is damaged")
classes = json.loads(about["classes"])
embeddings = np.load("other.npz")["embeddings"].astype(np.float32)
names = ["label", "score", "threshold"]
for label, score, threshold in zip(*session.run(names, {"embeddings": embeddings})):
    print(classes[label] if label >= 0 else "unknown", score, threshold)
"""

OUTPUTS = {
    "label": "(B,) int64: the class, -1 for unknown",
    "nearest": "(B,) int64: the class before the threshold",
    "score": "(B,) float64: the unknown score; larger is more unknown",
    "threshold": "(B,) float64: what the score was held against",
    "probabilities": "(B, {own}) float64: softmax over the network's own classes",
    "logits": "(B, {own}) float32",
    "embedding": "(B, D) float32",
    "typicality": "(B,) float64: how unlike all training images it is; larger is less like them",
    "p_value": "(B,) float64: how often known images look at least as unknown",
    "typicality_threshold": "(B,) float64: above it, the typicality alone makes a usual image unknown",
}
WITH_PROTOTYPES = {
    "distances": "(B, {all}) float64: to the prototypes of each class",
    "attention": "(B, T) float64: share of each prototype in the answer of the nearest class",
}


def model_card(
    file: str, header: OnnxHeader, parity: Parity, metrics: Mapping[str, Any] | None, prototypes: bool
) -> str:
    """Return the model card of a file.

    Args:
        file: its name.
        header: what the file says of itself.
        parity: how near it is to PyTorch.
        metrics: those of the run, if it has any.
        prototypes: whether the model has some.
    """
    parts = [
        f"# Model card: {_code(file)}",
        _what_it_is(header),
        "## Classes\n\n" + ", ".join(_code(name) for name in header.class_names),
        f"## Training data\n\n{_training(metrics)}",
        f"## Figures\n\n{_figures(header, metrics)}",
        f"## Threshold\n\n{_threshold(header)}",
        f"## The same answers as PyTorch\n\n{_parity(parity, 'rows' if header.takes_rows else 'images')}",
        f"## Limits\n\n{_limits(header, metrics)}",
        f"## How to run it\n\n{_usage(file, header, prototypes)}",
        "## License\n\nTo be filled in by whoever publishes this file: license, contact, intended use.",
    ]
    return "\n\n".join(parts) + "\n"


def _what_it_is(header: OnnxHeader) -> str:
    kind = "gray" if header.channels == 1 else "color"
    if header.takes_rows:
        return (
            f"An open-set classifier of embeddings: names one of {len(header.class_names)} classes, or says "
            f"*unknown*. One ONNX graph from {header.channels} float32 numbers per sample, which another "
            "model makes of it, to the decision; normalization and threshold are inside. The model that "
            f"embeds is not part of it. Written by pmal {printable(header.pmal)}."
        )
    return (
        f"An open-set image classifier: names one of {len(header.class_names)} classes, or says *unknown*. "
        f"One ONNX graph from uint8 {kind} images of {header.image_size} px to the decision; "
        f"normalization and threshold are inside. Written by pmal {printable(header.pmal)}."
    )


def _training(metrics: Mapping[str, Any] | None) -> str:
    if metrics is None:
        return "Not recorded with the model: to be filled in."
    about = metrics["about"]
    return (
        f"Source {_code(str(about['source']))}, split {about['split']}: {about['known_classes']} known and "
        f"{about['unknown_classes']} unknown classes. Method {about['method']}, encoder {about['encoder']}, "
        f"{counted(about['epochs'], 'epoch')}, {about['augmentation']} augmentation, seed {about['seed']}."
    )


def _figures(header: OnnxHeader, metrics: Mapping[str, Any] | None) -> str:
    if metrics is None:
        return "Not measured, or not recorded with the model."
    lines = [
        f"- Accuracy {with_interval(metrics['accuracy'])} on {metrics['known_images']:,} known test images."
    ]
    found = metrics["scores"].get(header.score, {})
    if found:
        names = ", ".join(f"{text} {with_interval(found[name])}" for name, text in COLUMNS.items())
        unknown = f"{metrics['unknown_images']:,} unknown test images"
        lines.append(f"- Known from unknown by score {header.score}: {names}, with {unknown}.")
    lines += _decision(header, metrics)
    return "\n".join([*lines, "", "Percent, with 95 % intervals in brackets."])


def _decision(header: OnnxHeader, metrics: Mapping[str, Any]) -> list[str]:
    """Return the lines about the decision.

    The metrics are measured at fit, so of no use if the file rejects by another rule.
    """
    found = metrics.get("decision")
    if not found or (found["score"], found["accept"]) != (header.score, header.accept) or header.per_class:
        return []
    text = f"- At the threshold: accepts {100 * found['known_accepted']:.1f} % of the known test images"
    if "unknown_rejected" in found:
        text += f", rejects {100 * found['unknown_rejected']:.1f} % of the unknown ones"
    return [f"{text}."]


def _threshold(header: OnnxHeader) -> str:
    values = sorted(set(header.thresholds))
    shown = f"{values[0]:.6g}" if len(values) == 1 else f"{values[0]:.6g} to {values[-1]:.6g}, by class"
    return (
        f"Rejects an image whose score {_code(header.score)} is above {shown}: {printable(header.note)}. "
        "What is promised holds for images drawn as the held-out ones were, on average over held-out sets. "
        "Of unknown images nothing is promised."
    )


def _parity(parity: Parity, unit: str) -> str:
    differ = parity.decisions_differ
    decisions = "every decision the same" if not differ else f"{differ} decisions at the threshold differ"
    return (
        f"Compared on {parity.images:,} {unit} ({parity.compared_on}) before the file was written: "
        f"{decisions}; scores differ by at most {parity.score_difference:.1g} of their spread."
    )


def _limits(header: OnnxHeader, metrics: Mapping[str, Any] | None) -> str:
    added = header.class_names[header.own_classes :]
    if header.takes_rows:
        first = (
            "- Of use only with the model whose embeddings it was trained on: others of the same width get "
        )
        first += "answers that mean nothing."
    else:
        first = "- Not tested on other cameras, sizes, crops or times than those of its data, "
        first += "nor against images made to deceive it."
    lines = [
        first,
        "- What it rejects depends on what it was tried on: other unknown classes can be harder.",
        "- Probabilities are those of the network, before the threshold.",
    ]
    if metrics is None or not metrics["scores"]:
        lines.append("- No figures on unknown classes.")
    if added:
        names = ", ".join(map(_code, added))
        lines.append(f"- Added without training, and in none of the figures: {names}.")
    return "\n".join(lines)


def _usage(file: str, header: OnnxHeader, prototypes: bool) -> str:
    sizes = {"own": header.own_classes, "all": len(header.class_names)}
    named = OUTPUTS | (WITH_PROTOTYPES if prototypes else {})
    outputs = "\n".join(f"- `{name}` {text.format(**sizes)}" for name, text in named.items())
    code = (ROWS_SNIPPET if header.takes_rows else SNIPPET).replace("FILE", repr(file))
    shape = ", ".join(map(str, ["B", *header.input_shape]))
    kind, example = ("float32", "other.npz") if header.takes_rows else ("uint8", "image.png")
    rate = ""
    if header.accept is not None:
        rate = " Input `accept`, which may be left out: float64 scalar, another share of known images to"
        rate += f" accept than {header.accept:g}."
    return (
        f"Input `{header.input_name}`: {kind} ({shape}), at least one.{rate} Outputs:\n\n"
        f"{outputs}\n\nClass names and the rest are in the metadata of the file.\n\n"
        f"```sh\npmal predict {shlex.quote(printable(file))} {example}\n```\n\n"
        f"```python\n{code}```"
    )


def _code(text: str) -> str:
    """Return the text as it is, in a code span, whatever is in it.

    >>> _code("cat"), _code("a`b")
    ('`cat`', '`` a`b ``')
    """
    text = printable(text)
    runs = [len(run) for run in re.findall("`+", text)]
    fence = "`" * (max(runs, default=0) + 1)
    return f"{fence} {text} {fence}" if runs or not text.strip() else f"{fence}{text}{fence}"
