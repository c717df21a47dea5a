"""Does robustness find poor images? (Property 3 of the paper, on real data.)

    python benchmarks/quality.py cifar10 --split 0 --recipe strong --epochs 40

A tenth of the training images is damaged (occlusion, blur and noise, a third each), two classifiers are
trained on all of them, and every rule ranks the images. Reported: AUROC of finding the damaged ones, per kind
of damage, for each `topology` and each `quality`; and accuracy per fifth of the ranking.
"""

import argparse
import dataclasses
import tempfile
import time
from pathlib import Path

import torch
from torch.nn import functional

from pmal._runtime.files import make_folder, write_json
from pmal._runtime.manifest import describe_environment
from pmal._runtime.progress import Lines
from pmal._runtime.session import open_session
from pmal.config import Resources, RunConfig, build, merge, read_recipe
from pmal.data.feeding.batches import ResidentImages
from pmal.data.feeding.parts import image_shape, open_part
from pmal.data.splits.task import open_task
from pmal.ensemble.classifier import ClassifierSpec
from pmal.ensemble.classifiers import train_classifiers
from pmal.ensemble.embeddings import embed_images
from pmal.ensemble.job import Job
from pmal.geometry.robustness import topology_robustness
from pmal.mining._arrays import check_spaces
from pmal.mining.quality import QUALITY_RULES, QualityOptions
from pmal.reporting.about import describe
from pmal.reporting.metrics import auroc

SHARE = 0.1
TOPOLOGIES = ("unit", "rms", "literal")


def occlude(images):
    """A gray square over a quarter of the area, somewhere."""
    side = images.shape[-1] // 2
    damaged = images.clone()
    for image in damaged:
        top, left = torch.randint(0, images.shape[-1] - side + 1, (2,)).tolist()
        image[:, top : top + side, left : left + side] = 128
    return damaged


def blur(images):
    """Down to a quarter of the resolution and back."""
    small = functional.interpolate(images.float(), scale_factor=0.25, mode="area")
    return functional.interpolate(small, size=images.shape[-2:], mode="bilinear").round().to(torch.uint8)


def noise(images):
    """Gaussian, deviation 50 of 255."""
    return (images.float() + 50 * torch.randn(images.shape)).clamp(0, 255).to(torch.uint8)


DAMAGES = {"occlusion": occlude, "blur": blur, "noise": noise}


def damage(images, seed):
    """The images with a tenth of them damaged, and the kind of each: 0 none, 1 .. as in DAMAGES."""
    torch.manual_seed(seed)
    images, kind = images.clone(), torch.zeros(len(images), dtype=torch.int64)
    chosen = torch.randperm(len(images))[: int(SHARE * len(images))]
    for index, (part, change) in enumerate(zip(chosen.chunk(len(DAMAGES)), DAMAGES.values(), strict=True)):
        images[part] = change(images[part])
        kind[part] = index + 1
    return images, kind


def finding(log_quality, kind):
    """AUROC of telling damaged from clean images, of all kinds together and of each."""
    poor = -log_quality
    found = {"all": auroc(poor[kind == 0], poor[kind > 0])}
    return found | {name: auroc(poor[kind == 0], poor[kind == i + 1]) for i, name in enumerate(DAMAGES)}


def accuracy_by_fifth(log_quality, correct):
    """From the least to the most robust fifth."""
    return [float(part.double().mean()) for part in correct[log_quality.argsort()].tensor_split(5)]


def main():
    args = parse_arguments()
    session = open_session(Resources(data_root=args.data_root), Lines(every=20.0))
    data = {"source": args.source, "family": args.family, "split": args.split}
    chosen = {"seed": args.seed, "data": data, "training": {"epochs": args.epochs}, "ensemble": {"size": 2}}
    config = build(RunConfig, merge(read_recipe(args.recipe), chosen))
    task = open_task(config.data, args.data_root)
    shape = image_shape(task.train, config.data)
    train = open_part("train", task.train, shape, session)
    images, kind = damage(train.images.images.cpu(), args.seed)
    images = ResidentImages(images, session.device)
    labels = train.labels(session.device)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        spec = ClassifierSpec(config.encoder, task.class_names, *shape)
        damaged = dataclasses.replace(train, images=images)
        classifiers = train_classifiers(Job(config, damaged, spec, task.flip, Path(folder), session))
    embedded = [embed_images(model, images) for model in classifiers]
    heads = [(model.head.weight.detach().cpu(), model.head.bias.detach().cpu()) for model in classifiers]
    spaces = [(z, *head) for (z, _), head in zip(embedded, heads, strict=True)]
    correct = embedded[0][1].argmax(1) == labels.cpu()

    ranked = {
        f"topology={name}": topology_robustness([s[:2] for s in spaces], topology=name) for name in TOPOLOGIES
    }
    checked = check_spaces(spaces)
    for name, rule in QUALITY_RULES.items():
        if name not in ("topology", "none"):
            ranked[f"quality={name}"] = rule(checked, labels.cpu(), QualityOptions(seed=args.seed))
    rows = {
        name: {"auroc": finding(value, kind), "accuracy_by_fifth": accuracy_by_fifth(value, correct)}
        for name, value in ranked.items()
    }
    result = {
        **describe(config, task),
        "recipe": args.recipe,
        "damaged": {"share": SHARE, "kinds": list(DAMAGES), "images": len(kind)},
        "training_accuracy": float(correct.double().mean()),
        "rules": rows,
        "seconds": time.perf_counter() - start,
        "manifest": describe_environment(session.device),
    }
    name = f"{args.source}-{args.family}{args.split}-{args.recipe}{args.epochs}-seed{args.seed}.json"
    write_json(make_folder(args.out) / name, result)
    for name, row in rows.items():
        figures = "  ".join(f"{kind} {100 * value:5.1f}" for kind, value in row["auroc"].items())
        fifths = " ".join(f"{value:.3f}" for value in row["accuracy_by_fifth"])
        print(f"{name:20s} {figures}  accuracy by fifth {fifths}", flush=True)


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source")
    parser.add_argument("--family", default="arpl")
    parser.add_argument("--split", type=int, default=0)
    parser.add_argument("--recipe", default="strong")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data-root")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "quality")
    return parser.parse_args()


if __name__ == "__main__":
    main()
