"""Models of an untrained network to be saved, and what somebody may do to the files."""

import hashlib
import json

import torch
from safetensors.torch import load_file, save_file

from pmal.config import EncoderConfig
from pmal.data.feeding.batches import ResidentImages
from pmal.ensemble.classifier import Classifier, ClassifierSpec
from pmal.ensemble.embeddings import embed_images
from pmal.rejection.bundle.saving import load_model
from pmal.rejection.calibration.held_out import Calibration
from pmal.rejection.model import OpenSetModel, Prototype, Rule
from pmal.rejection.scores import Reference, unknown_scores

CPU = torch.device("cpu")
NAMES = ("ant", "bee", "größe <1>")
FILES = (
    "model.json",
    "weights.safetensors",
    "reference.safetensors",
    "calibration.safetensors",
    "sha256.json",
)
TENSORS = FILES[1:4]


def pictures(n, seed=0):
    random = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (n, 1, 28, 28), dtype=torch.uint8, generator=random)


def make_network(seed=0, names=NAMES, encoder=None):
    torch.manual_seed(seed)
    network = Classifier(ClassifierSpec(encoder or EncoderConfig("small"), names, 28, 1)).eval()
    network.set_normalization(torch.tensor([0.1]), torch.tensor([0.3]))
    return network


def make_model(network, rule=None, added=(), distance="point-to-set", calibrated=True):
    names = (*network.spec.class_names, *added)
    bank_ND, _ = embed_images(network, ResidentImages(pictures(30, 1), CPU))
    mask_KT = torch.tensor([[True, True], [True, False], [True, True], [True, True]])[: len(names)]
    # A view of the bank, as a caller may have it: two tensors of one memory.
    reference = Reference(bank_ND[: 2 * len(names)].view(len(names), 2, -1), mask_KT, distance, bank_ND)
    gallery = tuple(
        tuple(Prototype(10 * k + t, f"{k}/{t}.png", -0.1 * t, 1.0 / 3) for t in range(int(row.sum())))
        for k, row in enumerate(mask_KT)
    )
    z_ND, logits_NK = embed_images(network, ResidentImages(pictures(45, 2), CPU))
    scores = unknown_scores(z_ND, logits_NK, reference)
    calibration = Calibration.fit(scores, logits_NK.argmax(dim=1)) if calibrated else None
    shown = pictures(int(mask_KT.sum()), 1)
    return OpenSetModel(network, names, rule or Rule("distance", 0.8), reference, gallery, shown, calibration)


def softmax(rule, calibrated):
    network = make_network()
    z_ND, logits_NK = embed_images(network, ResidentImages(pictures(45, 2), CPU))
    calibration = Calibration.fit(unknown_scores(z_ND, logits_NK), logits_NK.argmax(dim=1))
    return OpenSetModel(network, NAMES, rule, calibration=calibration if calibrated else None)


def load(folder):
    return load_model(folder, CPU)


def answers(folder):
    return load(folder).answer(pictures(4, 3)).score


def listing(folder):
    return sorted(entry.name for entry in folder.iterdir())


def seal(folder):
    """Compute the checksums anew, as somebody would who wants a changed bundle to be accepted."""
    names = [name for name in listing(folder) if name != "sha256.json"]
    sums = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}
    (folder / "sha256.json").write_text(json.dumps(sums))
    return sums


def edit_record(folder, change):
    content = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    change(content)
    (folder / "model.json").write_text(json.dumps(content))
    return seal(folder)


def edit_tensors(folder, name, change):
    """Change a tensor file and claim that model.json was written with it."""
    tensors = load_file(folder / name)
    change(tensors)
    record = hashlib.sha256((folder / "model.json").read_bytes()).hexdigest()
    save_file({key: t.contiguous() for key, t in tensors.items()}, folder / name, {"model.json": record})
    seal(folder)


def forge_record(folder, change):
    """Change model.json and make all tensor files claim that they belong to it."""
    edit_record(folder, change)
    for name in TENSORS:
        edit_tensors(folder, name, lambda tensors: None)


def fingerprint_of(folder):
    """What model.json has to say of the tensors beside it."""
    digest = hashlib.sha256()
    for file in ("weights", "reference", "calibration", "typicality"):
        path = folder / f"{file}.safetensors"
        for name, tensor in sorted(load_file(path).items()) if path.is_file() else ():
            digest.update(f"{path.name} {name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            digest.update(bytes(tensor.contiguous().flatten().view(torch.uint8).tolist()))
    return digest.hexdigest()
