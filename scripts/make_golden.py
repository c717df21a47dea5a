"""Writes the golden files of this version: a bundle, its ONNX file, and what both answer.

    python -m scripts.make_golden tests/whole_runs/golden/0.2

Every later version has to load them and to answer the same (tests/whole_runs/test_golden.py). They are made
once for a version and never again.
"""

import json
import sys
from pathlib import Path
from unittest import mock

import torch

from pmal._runtime.files import make_folder
from pmal.config import EncoderConfig
from pmal.encoders import register_encoder
from pmal.rejection.bundle.saving import save_model
from pmal.rejection.model import Rule
from pmal.serving.onnx.exporting import export_onnx
from pmal.serving.onnx.parity import Images
from tests.serving import tiny_model
from tests.support.golden_encoder import NAME, golden


def some_images() -> torch.Tensor:
    """Return three of each class, and three of none."""
    found: torch.Tensor = torch.cat([tiny_model.pictures_of(kind, 3, seed=7) for kind in range(4)])
    return found


def main(folder: Path) -> None:
    make_folder(folder)
    register_encoder(NAME)(golden)
    with mock.patch.object(tiny_model, "EncoderConfig", return_value=EncoderConfig(NAME)):
        model = tiny_model.make_model(Rule("combined", 0.9))
    images = some_images()
    save_model(folder / "model", model)
    (folder / "model.onnx").write_bytes(export_onnx(model, Images(images, "golden images")).data)
    answers = model.answer(images)
    found = {"labels": answers.labels, "scores": answers.score, "p_values": answers.p_values}
    content = {"images": images.flatten(1).tolist(), "shape": list(images.shape[1:])}
    content |= {name: values.tolist() for name, values in found.items()}
    (folder / "answers.json").write_text(json.dumps(content) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
