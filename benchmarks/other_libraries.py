"""Our scores and metrics next to those of pytorch-ood and OpenOOD, on the same embeddings and logits.

    python -m benchmarks.other_libraries [--run RUN]

RUN is a finished run of `softmax`; without one, a softmax learns the sample. pytorch-ood computes by its own
code (`pip install --no-deps pytorch-ood`; it is loaded without its data sets and models, which need
torchvision). OpenOOD's post-processors are bound to its own networks: their formulas are written down in
`openood.py` beside this file. Writes to benchmarks/results/other_libraries.
"""

import argparse
import importlib
import importlib.util
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import spearmanr
from torch import Tensor

from benchmarks import openood
from pmal import pipeline
from pmal._runtime.files import write_json
from pmal._runtime.manifest import describe_environment
from pmal._runtime.session import Session, open_session
from pmal.baselines.openmax import OpenMaxHead
from pmal.config import RunConfig, build, merge, read_recipe
from pmal.data.splits.task import open_task
from pmal.ensemble.embeddings import embed_images
from pmal.ensemble.heads import HeadShape, LinearHead
from pmal.ensemble.inputs import run_inputs
from pmal.rejection.bundle.saving import load_model
from pmal.rejection.post_hoc import REACT_SHARE, principal_directions
from pmal.rejection.scores import LOGIT_SCORES, NEIGHBORS
from pmal.rejection.training_scores import TrainingScores
from pmal.reporting import metrics
from pmal.run.run_folder import read_config

OUT = Path(__file__).parent / "results" / "other_libraries"
USUAL_NEIGHBORS = 50
"""Which neighbor both libraries look at unless told otherwise."""
Floats = NDArray[np.float64]
Theirs = tuple[str, str, Floats, Callable[[Floats], Floats]]
"""Our name of the score, what is special, the scores of another library, what brings them to our scale."""


@dataclass(frozen=True)
class Saved:
    """What a network makes of its training images and of all test images, those of unknown classes last."""

    z: Tensor
    logits: Tensor
    labels: Tensor
    test_z: Tensor
    test_logits: Tensor
    test_labels: Tensor
    """-1 for unknown classes."""
    head: LinearHead

    @property
    def principal(self) -> int:
        """How many directions ViM leaves out."""
        return principal_directions(self.z.shape[1])

    def area(self, score: Floats) -> float:
        known = self.test_labels.numpy() >= 0
        return metrics.auroc(score[known], score[~known])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--run", type=Path)
    args = parser.parse_args()
    session, library = open_session(), load_pytorch_ood()
    manifest = describe_environment(torch.device("cpu"))  # before a file of it changes the tree
    with tempfile.TemporaryDirectory() as folder:
        run = args.run or Path(folder) / "run"
        if args.run is None:
            settings = merge(read_recipe("sample"), {"method": "softmax", "ensemble": {"size": 1}})
            pipeline.fit(build(RunConfig, settings), run, session)
        saved, about = embed(run, session)
    found = {"scores": [*score_rows(saved, library)], "metrics": [*metric_rows(saved, library)]}
    for row in found["scores"] + found["metrics"]:
        print(" | ".join(f"{value:.3g}" if isinstance(value, float) else value for value in row.values()))
    OUT.mkdir(parents=True, exist_ok=True)
    about |= {"pytorch-ood": library.version}
    write_json(OUT / f"{about['source']}-softmax.json", {"about": about, **found, "manifest": manifest})


def embed(run: Path, session: Session) -> tuple[Saved, dict[str, Any]]:
    """Embed the training and test images of a run by its network."""
    config, network = read_config(run), load_model(run / "model", session.device).classifier
    task = open_task(config.data, session.resources.data_root)
    parts = run_inputs(config, network.spec.image_shape, run, session).open_parts(task, session)
    shown = [parts[name] for name in ("train", "test", "unknown")]
    found = [[x.cpu() for x in embed_images(network, part.images)] for part in shown]
    (z, logits), *tests = found
    labels = [part.labels(torch.device("cpu")) for part in shown]
    test_labels = torch.cat([labels[1], torch.full_like(labels[2], -1)])
    test_z, test_logits = (torch.cat(both) for both in zip(*tests, strict=True))
    about = {"source": config.data.source, "channels": z.shape[1], "classes": logits.shape[1]}
    about |= {"images": [len(one) for one, _ in found], "epochs": config.training.epochs}
    assert type(network.head) is LinearHead
    return Saved(z, logits, labels[0], test_z, test_logits, test_labels, network.head.cpu()), about


def load_pytorch_ood() -> types.SimpleNamespace:
    """Its detectors and metrics, without the import of its models and data sets, which need torchvision."""
    spec = importlib.util.find_spec("pytorch_ood")
    if spec is None:
        raise SystemExit("pytorch-ood is not installed: pip install --no-deps pytorch-ood")
    bare = types.ModuleType("pytorch_ood")
    bare.__path__ = list(spec.submodule_search_locations or ())
    sys.modules["pytorch_ood"] = bare
    detector, measures = (importlib.import_module(f"pytorch_ood.{name}") for name in ("detector", "metrics"))
    return types.SimpleNamespace(detector=detector, metrics=measures, version=version("pytorch-ood"))


def our_scores(saved: Saved) -> dict[str, Floats]:
    """Every score of ours that another library has, of all test images."""
    openmax = OpenMaxHead(HeadShape(saved.z.shape[1], saved.logits.shape[1], 1, 8))
    openmax.fit_after(saved.z, saved.logits, saved.labels)
    fitted = TrainingScores.fit(saved.z, saved.labels, saved.head)
    found = fitted.scores(saved.test_z, saved.test_logits)
    found |= openmax.unknown_scores(saved.test_z, saved.test_logits.double())
    found |= {name: score(saved.test_logits) for name, score in LOGIT_SCORES.items()}
    return {name: np.asarray(score, dtype=np.float64) for name, score in found.items()}


def of_pytorch_ood(saved: Saved, detector: Any) -> Iterator[Theirs]:
    """Its scores, in float32 as it computes them."""
    weight, bias = saved.head.weight.detach(), saved.head.bias.detach()
    z, logits, labels = saved.z, saved.logits, saved.labels
    yield "logit", "", _doubles(detector.MaxLogit.score(saved.test_logits)), _as_it_is
    yield "probability", "", _doubles(detector.MaxSoftmax.score(saved.test_logits)), lambda s: 1 + s
    yield "energy", "", _doubles(detector.EnergyBased.score(saved.test_logits)), _as_it_is
    for k in (NEIGHBORS, USUAL_NEIGHBORS):
        found = detector.KNN(None, k=k).fit_features(z, labels).predict_features(saved.test_z)
        yield "neighbors", f"k = {k}", _doubles(found), lambda s: s**2 / 2
    found = detector.Mahalanobis(None).fit_features(z, labels).predict_features(saved.test_z)
    yield "mahalanobis", "", _doubles(found), lambda s: 2 * len(z) * s
    vim = detector.ViM(None, saved.principal, weight, bias).fit_features(z, labels)
    yield "vim", "", _doubles(vim.predict_features(saved.test_z)), _as_it_is
    react = detector.ReAct(None, saved.head, percentile=REACT_SHARE).fit_feature_maps(z, labels)
    yield "react", "", _doubles(react.predict_feature_maps(saved.test_z)), _as_it_is
    openmax = detector.OpenMax(None).fit_logits(logits, labels)
    yield "openmax", "", _doubles(openmax.predict_logits(saved.test_logits)), _as_it_is


def of_openood(saved: Saved) -> Iterator[Theirs]:
    """The formulas of its post-processors, in float64, as confidences with their sign turned."""
    train, test = saved.z.double().numpy(), saved.test_z.double().numpy()
    logits, labels = saved.logits.double().numpy(), saved.labels.numpy()
    test_logits = saved.test_logits.double().numpy()
    layer = (saved.head.weight.detach().double().numpy(), saved.head.bias.detach().double().numpy())
    yield "logit", "", openood.max_logit(test_logits), _as_it_is
    yield "probability", "", openood.max_softmax(test_logits), lambda s: 1 + s
    yield "energy", "", openood.energy(test_logits), _as_it_is
    for k in (NEIGHBORS, USUAL_NEIGHBORS):
        yield "neighbors", f"k = {k}", openood.neighbors(test, train, k), lambda s: s / 2
    yield "mahalanobis", "", openood.mahalanobis(test, train, labels), _as_it_is
    yield "vim", "", openood.vim(test, train, *layer, saved.principal), _as_it_is
    yield "react", "", openood.react(test, train, *layer, 100 * REACT_SHARE), _as_it_is
    yield "openmax", "", openood.openmax(test_logits, logits, labels), _as_it_is


def score_rows(saved: Saved, library: Any) -> Iterator[dict[str, Any]]:
    """How far each score of another library is from ours, in standard deviations of ours."""
    ours = our_scores(saved)
    sources = {"pytorch-ood": of_pytorch_ood(saved, library.detector), "OpenOOD": of_openood(saved)}
    for source, found in sources.items():
        for name, special, theirs, to_our_scale in found:
            gap = np.abs(to_our_scale(theirs) - ours[name]).max()
            yield {
                "score": ", ".join(filter(None, (name, special))),
                "library": source,
                "largest_difference": float(gap / ours[name].std()),
                "rank_correlation": float(spearmanr(ours[name], theirs).statistic),
                "our_auroc": saved.area(ours[name]),
                "their_auroc": saved.area(theirs),
            }


def metric_rows(saved: Saved, library: Any) -> Iterator[dict[str, Any]]:
    """Each metric of the largest logit, by us, by pytorch-ood and by OpenOOD's formulas."""
    score, labels = -saved.test_logits.double().amax(dim=1), saved.test_labels
    predictions, known = saved.test_logits.argmax(dim=1), labels >= 0
    both = score[known].numpy(), score[~known].numpy()
    ours = {"AUROC": metrics.auroc(*both), "FPR95": metrics.fpr_at_tpr(*both)}
    ours |= {"OSCR": metrics.oscr((predictions == labels)[known].numpy(), *both)}
    ours |= {"AUPR, known": metrics.aupr_in(*both), "AUPR, unknown": metrics.aupr_out(*both)}
    theirs = library.metrics.OODMetrics().update(score, labels).compute()
    # With known and unknown in each other's places, and the sign turned.
    turned = library.metrics.OODMetrics().update(-score, torch.where(known, -1, 0)).compute()
    found = {"AUROC": theirs["AUROC"], "AUPR, known": theirs["AUPR-IN"], "AUPR, unknown": theirs["AUPR-OUT"]}
    found |= {"FPR95": theirs["FPR95TPR"], "FPR95, roles changed": turned["FPR95TPR"]}
    found |= {"OSCR": library.metrics.oscr_score(score, predictions, labels)}
    of_openood = openood.metrics(-score.numpy(), known.numpy())
    for source, values in {"pytorch-ood": found, "OpenOOD": of_openood}.items():
        for name, value in values.items():
            own = ours[name.removesuffix(", roles changed")]
            yield {"metric": name, "library": source, "ours": own, "theirs": value, "difference": value - own}


def _as_it_is(score: Floats) -> Floats:
    return score


def _doubles(score: Tensor) -> Floats:
    found: Floats = score.detach().double().numpy()
    return found


if __name__ == "__main__":
    main()
