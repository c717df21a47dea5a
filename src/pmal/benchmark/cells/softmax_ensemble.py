"""Several softmax classifiers that answer by the mean of their logits, at the cost of PMAL."""

import functools
from pathlib import Path
from typing import Any

import torch

from pmal import pipeline
from pmal._runtime.manifest import describe_environment
from pmal._runtime.session import Session
from pmal.config import RunConfig
from pmal.data.feeding.parts import Part, image_shape
from pmal.data.splits.task import open_task
from pmal.ensemble.classifier import Classifier
from pmal.ensemble.classifiers import load_classifiers
from pmal.ensemble.embeddings import embed_images
from pmal.ensemble.inputs import run_inputs
from pmal.rejection.scores import LOGIT_SCORES
from pmal.reporting.about import describe
from pmal.reporting.evaluation import evaluate


def measure_ensemble(config: RunConfig, run: Path, session: Session) -> dict[str, Any]:
    """Train the classifiers of a run and return the figures of their mean logits.

    The figures have the form of those of `pipeline.fit`.
    """
    pipeline.fit(config, run, session, only="classifiers")
    task = open_task(config.data, session.resources.data_root)
    classifiers = load_classifiers(run / "classifiers", config.classifiers, task.class_names, session)
    samples = {"test": task.test, "unknown": task.unknown}
    inputs = run_inputs(config, image_shape(task.train, config.data), run, session)
    parts = [inputs.open(name, part, session) for name, part in samples.items() if part is not None]
    logits_NK, *unknown = mean_logits(classifiers, parts, session)
    labels_N = parts[0].labels(torch.device("cpu"))
    scores = [{name: score(one) for name, score in LOGIT_SCORES.items()} for one in (logits_NK, *unknown)]
    figures = evaluate(logits_NK, labels_N, scores[0], scores[1] if unknown else None)
    about = {"manifest": {"images": task.drawn(), **describe_environment(session.device)}}
    return describe(config, task) | figures | about


def mean_logits(classifiers: list[Classifier], parts: list[Part], session: Session) -> list[torch.Tensor]:
    """Return the logits of each part's images in float64, averaged over the classifiers."""
    total = len(classifiers) * sum(len(part.images) for part in parts)
    found = []
    with session.display.stage("evaluation", total, "images") as advance:
        for part in parts:
            logits = (embed_images(network, part.images, advance=advance)[1] for network in classifiers)
            sum_NK = functools.reduce(torch.add, (logits_NK.double() for logits_NK in logits))
            found.append(sum_NK / len(classifiers))
    return found
