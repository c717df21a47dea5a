"""False alarms and found changes of the watch over traffic, and the promise of a threshold after updates.

    python -m benchmarks.traffic watch
    python -m benchmarks.traffic update
    python -m benchmarks.traffic promise

`watch`: in each of 1,000 runs, 200 held-out scores and 1,000 answers. Known scores are standard normal. In
`none` nothing changes; in `shift` known scores grow by half a standard deviation from answer 300 on; in
`unknown` every tenth image is an unknown one from there on, whose score is 3 larger.

`update`: in each of 200 runs, a model with 40 held-out samples (two Gaussian classes in 6 dimensions) takes
corrected answers in twice, and then answers 1,000 new known samples. In `fair` they are a fair sample of 60;
in `mistakes` only those of 60 that were rejected; in `moved` all 60 come from classes that have moved.
`promise` is the same for `before` and `fair` by the score that PMAL rejects by, in 1,000 runs.
Writes benchmarks/results/discovery/watch.json, update.json and promise.json.
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pmal._runtime.files import write_json
from pmal._runtime.manifest import describe_environment
from pmal.config import EncoderConfig
from pmal.ensemble.classifier import Classifier, ClassifierSpec
from pmal.rejection.calibration.held_out import Calibration
from pmal.rejection.calibration.thresholds import conformal_p_values
from pmal.rejection.model import OpenSetModel, Prototype, Rule
from pmal.rejection.open_world.corrected import Corrected
from pmal.rejection.open_world.renewal import renew
from pmal.rejection.open_world.traffic_watch import TrafficWatch
from pmal.rejection.scores import Reference, unknown_scores

OUT = Path(__file__).parent / "results" / "discovery"
HELD_OUT, ANSWERS, CHANGE, ALARM = 200, 1000, 300, 0.05
FEATURES, NEW = 6, 60
SCORES = ("distance", "neighbors", "combined")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=("watch", "update", "promise"))
    parser.add_argument("--runs", type=int)
    args = parser.parse_args()
    manifest = describe_environment(torch.device("cpu"))
    if args.part == "watch":
        rows = [watch(kind, args.runs or 1000) for kind in ("none", "shift", "unknown")]
    elif args.part == "promise":
        rows = [update("combined", kind, args.runs or 1000) for kind in ("before", "fair")]
    else:
        kinds = [(score, kind) for score in SCORES for kind in ("before", "fair", "mistakes", "moved")]
        rows = [update(score, kind, args.runs or 200) for score, kind in kinds]
    write_json(OUT / f"{args.part}.json", {"rows": rows, "manifest": manifest})
    for row in rows:
        print(row)


def watch(kind: str, runs: int) -> dict[str, Any]:
    """Return in how many runs each alarm was given, and the median of the answers from the change to it."""
    states = [watched(kind, seed) for seed in range(runs)]
    about = {"kind": kind, "runs": runs, "held_out": HELD_OUT, "answers": ANSWERS, "false_alarms": ALARM}
    for name in ("known", "traffic"):
        at = [state[name]["alarm_at"] for state in states if state[name]["alarm"]]
        early = 0 if kind == "none" else sum(place <= CHANGE for place in at)
        late = [place - CHANGE for place in at if place > CHANGE]
        about |= {f"{name}_alarms": len(at), f"{name}_before_the_change": early}
        about |= {f"{name}_median_delay": float(np.median(late)) if late and kind != "none" else None}
    return about


def watched(kind: str, seed: int) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    scores = random.normal(size=ANSWERS)
    if kind == "shift":
        scores[CHANGE:] += 0.5
    if kind == "unknown":
        scores[CHANGE::10] += 3
    watcher = TrafficWatch(HELD_OUT, accept=0.95, alarm=ALARM, seed=seed)
    watcher.observe(conformal_p_values(random.normal(size=HELD_OUT), scores))
    return watcher.state()


def update(score: str, kind: str, runs: int) -> dict[str, Any]:
    """Return the mean share of new known samples that is accepted, and how often training is advised."""
    found = [updated(score, kind, seed) for seed in range(runs)]
    shares = np.array([share for share, _ in found])
    return {
        "score": score,
        "kind": kind,
        "runs": runs,
        "promised": 0.9,
        "accepted": float(shares.mean()),
        "standard_error": float(shares.std(ddof=1) / np.sqrt(runs)),
        "advised": float(np.mean([advised for _, advised in found])),
    }


def updated(score: str, kind: str, seed: int) -> tuple[float, bool]:
    random = torch.Generator().manual_seed(seed)
    model, advised = make_model(score, random), False
    moved = 0.7 if kind == "moved" else 0.0
    for _ in range(0 if kind == "before" else 2):
        given = corrected(model, random, moved, only_mistakes=kind == "mistakes")
        if len(given.z):
            model, effect = renew(model, given)
            advised |= effect.train_again
    z_ND, _ = draw(random, 1000, moved)
    answers = model.answer_embedded(z_ND, model.logits(z_ND))
    return float((answers.labels >= 0).double().mean()), advised


def draw(random: torch.Generator, count: int, moved: float = 0.0) -> tuple[Tensor, Tensor]:
    """Return samples of two classes along the first two axes, which may have moved along the third."""
    labels_N = torch.randint(0, 2, (count,), generator=random)
    z_ND = 0.5 * torch.randn(count, FEATURES, generator=random) + 2 * torch.eye(FEATURES)[labels_N]
    z_ND[:, 2] += moved
    return z_ND, labels_N


def make_model(score: str, random: torch.Generator) -> OpenSetModel:
    network = Classifier(ClassifierSpec(EncoderConfig("precomputed"), ("ant", "bee"), 1, FEATURES)).eval()
    with torch.no_grad():
        network.head.weight.copy_(torch.eye(FEATURES)[:2])
        network.head.bias.zero_()
    (bank_ND, labels_N), (held_ND, held_N) = draw(random, 60), draw(random, 40)
    table_KTD = torch.stack([bank_ND[labels_N == k][:5] for k in range(2)])
    reference = Reference(table_KTD, torch.ones(2, 5, dtype=torch.bool), "point-to-set", bank_ND)
    with torch.no_grad():
        logits_NK = network.head(held_ND)
    held = Calibration.fit(unknown_scores(held_ND, logits_NK, reference), logits_NK.argmax(dim=1))
    gallery = tuple(tuple(Prototype(5 * k + t, f"{k}/{t}", 0.0, 1.0) for t in range(5)) for k in range(2))
    model = OpenSetModel(network, ("ant", "bee"), Rule(score, 0.9), reference, gallery)
    return replace(model, calibration=held.keeping(held_ND, held_N))


def corrected(model: OpenSetModel, random: torch.Generator, moved: float, only_mistakes: bool) -> Corrected:
    z_ND, labels_N = draw(random, NEW, moved)
    if only_mistakes:
        rejected_N = model.answer_embedded(z_ND, model.logits(z_ND)).labels < 0
        z_ND, labels_N = z_ND[rejected_N], labels_N[rejected_N]
    far_N = torch.full((len(z_ND),), -torch.inf, dtype=torch.float64)
    return Corrected(z_ND, far_N, labels_N, z_ND[:, :, None, None], [str(i) for i in range(len(z_ND))])


if __name__ == "__main__":
    main()
