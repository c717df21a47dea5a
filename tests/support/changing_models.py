"""Models that commands change, images for them, and how to see what was changed."""

from dataclasses import replace

import torch

from pmal._runtime.files import sha256
from pmal.data.decoding.decode import encode_png
from tests.serving.tiny_model import HELD_OUT, make_model, pictures_of


def model_with_held_out(rule):
    """The tiny model, which keeps the embeddings that an added class is measured on."""
    model = make_model(rule)
    with torch.no_grad():
        z_ND, _ = model.classifier.embed(torch.cat([pictures_of(k, HELD_OUT, 2) for k in range(3)]))
    labels_N = torch.arange(3).repeat_interleave(HELD_OUT)
    return replace(model, calibration=model.calibration.keeping(z_ND, labels_N))


def write_images(folder, images):
    folder.mkdir()
    for i, image in enumerate(images):
        (folder / f"{i}.png").write_bytes(encode_png(image.permute(1, 2, 0).numpy()))
    return folder


def listing(folder):
    files = [file for file in folder.rglob("*") if file.is_file() and file.name != ".lock"]
    return {str(file): (file.stat().st_mtime_ns, sha256(file)) for file in files}
