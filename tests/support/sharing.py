"""What one process or several do in test_distributed.py, to be compared. As a script: OUT, a folder."""

import dataclasses
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.functional import cross_entropy

from pmal._engine.batch_norm import synchronize
from pmal._engine.loop import Training, TrainingSet, train_together
from pmal._engine.optimizers import make_optimizer
from pmal._engine.steps import EagerStep
from pmal._runtime.processes.torchrun import finish_rank, open_ranks
from pmal._runtime.progress import Silent
from pmal._runtime.session import Session
from pmal.config import (
    DataConfig,
    EncoderConfig,
    MiningConfig,
    OptimizationConfig,
    Resources,
    RunConfig,
    TrainingConfig,
)
from pmal.data.decoding.fitting import ImageShape
from pmal.data.feeding.batches import ResidentImages
from pmal.data.feeding.parts import open_part
from pmal.data.samples import BadImage, Samples
from pmal.ensemble.classifier import Classifier, ClassifierSpec
from pmal.ensemble.embeddings import embed_images
from pmal.mining.files.file_miner import mine_file
from pmal.mining.miner import mine_spaces
from pmal.mining.prototypes import PrototypeSet
from pmal.mining.quality import QualityOptions
from pmal.optimization.training import PrototypeTrainingSet, make_prototype_learner

CPU = torch.device("cpu")
SPEC = ClassifierSpec(EncoderConfig("small"), ("a", "b", "c"), image_size=8, channels=1)
TRAINING = TrainingConfig(epochs=2, batch_size=8, learning_rate=0.05, precision="float32")
MINING = {"exact": {}, "fast": {"precision": "fast"}, "landmarks": {"landmarks": 300}}
OBJECTIVES = {  # whether batch norm, prototypes, how many of them renewed in a step
    "all prototypes": (True, 6, 0),
    "some at a time": (True, 6, 4),
    "an odd number": (False, 7, 0),
    "fewer than processes": (False, 1, 0),
}


def make_data(count=34):
    generator = torch.Generator().manual_seed(0)
    pictures = torch.randint(0, 256, (count, 1, 8, 8), dtype=torch.uint8, generator=generator)
    return TrainingSet(ResidentImages(pictures, CPU), torch.arange(count) % 3, 100 + np.arange(count))


def make_classifier(batch_norm=True):
    torch.manual_seed(1)
    model = Classifier(SPEC)
    if not batch_norm:
        for module in list(model.modules()):
            for name, child in module.named_children():
                if isinstance(child, nn.BatchNorm2d):
                    setattr(module, name, nn.Identity())
    return model.eval()


def mined(ranks, folder):
    """Three spaces of enough samples for the kernel; two so close that some samples need float64."""
    rng = np.random.default_rng(0)
    z, head = rng.normal(size=(2600, 8)), rng.normal(size=(6, 8))
    noise = 10 ** rng.uniform(-6, -2, (2600, 1))
    spaces = [(z, head), (z + noise * rng.normal(size=z.shape), head), (rng.normal(size=z.shape), head)]
    labels = rng.integers(0, 6, len(z))
    found = {}
    for name, settings in MINING.items():
        options = QualityOptions(MiningConfig(per_class=7, **settings), 3, device="cpu", ranks=ranks)
        mined, quality = mine_spaces(spaces, labels, options)
        quality.save(folder / "quality", ranks=ranks)
        mined.save(folder / "prototypes", ranks)
        prototypes = PrototypeSet.load(folder / "prototypes", ranks)
        found[f"{name} quality"] = quality.log_r
        found |= {f"{name} {column}": getattr(prototypes, column) for column in ("ids", "log_r", "gap")}
    return found


def stepped(ranks, batch_norm, count, refresh):
    """The second training in float64 with three steps' gradients, weights and bank."""
    data = make_data()
    labels = (data.labels[:count]).sort()
    member = torch.arange(count)[labels.indices]
    rank = torch.cat([torch.arange(int((labels.values == k).sum())) for k in range(3)])
    zeros = torch.zeros(count, dtype=torch.float64)
    mined = PrototypeSet(torch.from_numpy(data.ids)[member], labels.values, zeros, zeros, rank, num_classes=3)
    both = PrototypeTrainingSet(data.images, data.labels, data.ids, mined)
    config = RunConfig(
        data=DataConfig(augmentation="none"),
        training=TRAINING,
        optimization=OptimizationConfig(refresh=refresh, margin=1.5),
    )
    model = make_classifier(batch_norm).double()
    learner = make_prototype_learner(model, both, config, flip=False, seed=1, ranks=ranks)
    synchronize(learner, ranks)
    learner.train()
    optimizer = make_optimizer(learner, TRAINING)
    step = EagerStep(learner.objective, optimizer, None, "float32", lambda loss: None, ranks)
    found = {}
    for index in range(3):
        batch = torch.arange(8 * index, 8 * index + 8)[ranks.share(8)]
        found[f"loss {index}"] = step(data.images.images[batch], data.labels[batch])
        gradients = {name: p.grad for name, p in learner.named_parameters() if p.grad is not None}
        found |= {f"gradient {index} {name}": value.clone() for name, value in gradients.items()}
    return found | {f"state {name}": value.clone() for name, value in learner.state_dict().items()}


class Damaged:
    """A store of twelve pictures, two of which cannot be read."""

    def __len__(self):
        return 12

    def name(self, row):
        return f"{row}.png"

    def read(self, row):
        if row in (1, 10):
            raise BadImage("truncated")
        return np.full((8, 8, 1), row, dtype=np.uint8)


def opened(ranks):
    """Pictures that are held in memory, and such that are streamed."""
    found = {}
    for name, limit in (("held", 8.0), ("streamed", 0.0)):
        session = Session(CPU, Resources(memory_limit=limit, workers=1), Silent(), ranks=ranks)
        part = open_part(
            "train", Samples.whole(Damaged(), np.arange(12) % 3, ("a", "b", "c")), ImageShape(8, 1), session
        )
        found[f"{name} ids"] = torch.from_numpy(part.samples.ids)
        found[f"{name} labels"] = part.labels(CPU)
        found[f"{name} unreadable"] = torch.tensor([bad.id for bad in part.unreadable])
        if limit:
            found["pixels"] = part.images.images
    return found


def kept(ranks, folder):
    """Each process decodes its share into a file that both have."""
    resources = Resources(memory_limit=0.0, workers=1, cache=str(folder))
    session = Session(CPU, resources, Silent(), ranks=ranks)
    samples = Samples.whole(Damaged(), np.arange(12) % 3, ("a", "b", "c"))
    images = open_part("train", samples, ImageShape(8, 1), session).images
    list(images.stream([torch.arange(10)[ranks.share(10)]]))
    ranks.gather(None)  # both are done
    pixels = torch.zeros(10, 1, 8, 8, dtype=torch.uint8)
    images.file.read(torch.arange(10), pixels)
    return {"kept": images.file.kept(), "pixels": pixels}


def mined_file(ranks, folder):
    """Embeddings without heads, which are fitted first."""
    rng = np.random.default_rng(1)
    np.savez(folder / f"z{ranks.rank}.npz", z=rng.normal(size=(90, 4)), labels=np.arange(90) % 3)
    found = mine_file(folder / f"z{ranks.rank}.npz", folder / "mined", device="cpu", ranks=ranks)
    return {
        "log_r": found.log_r,
        "ids": found.prototypes.ids,
        "files": torch.tensor(len(list(folder.glob("mined*")))),
    }


def trained(ranks, folder, synchronized):
    """A whole training by the loop; and what each process's random numbers were."""
    data, model, drawn = make_data(), make_classifier(), []
    log = []
    session = Session(CPU, Resources(checkpoint_seconds=1e9), Silent(), lambda **e: log.append(e), ranks)

    def objective(images, labels):
        drawn.append(torch.rand(1))
        return cross_entropy(model((images.float() - 128) / 64), labels)

    config = dataclasses.replace(TRAINING, sync_batch_norm=synchronized)
    train_together("net", [Training("net", model, objective, 5, folder)], data, config, session)
    losses = torch.tensor([event["loss"] for event in log])
    return {"losses": losses, "drawn": torch.cat(drawn), **model.state_dict()}


def everything(ranks, folder):
    """All of it, by name."""
    images = ResidentImages(make_data(1300).images.images, CPU)
    found = {
        "mined": mined(ranks, folder),
        "embedded": dict(zip("zl", embed_images(make_classifier(), images, ranks=ranks), strict=True)),
        "opened": opened(ranks),
        "kept": kept(ranks, folder),
        "mined file": mined_file(ranks, folder),
        "trained": trained(ranks, folder, synchronized=True),
        "trained apart": trained(ranks, folder, synchronized=False),
    }
    return found | {name: stepped(ranks, *setting) for name, setting in OBJECTIVES.items()}


if __name__ == "__main__":
    out = Path(sys.argv[1])
    ranks = open_ranks("cpu")
    for name, tensors in everything(ranks, out).items():
        plain = {key: value.contiguous().clone() for key, value in tensors.items()}
        save_file(plain, out / f"{name}.{ranks.rank}.safetensors")
    finish_rank(0)
