"""Which score decides: single scores and weighted combinations, compared on known classes alone.

    python -m benchmarks.score_choice SCORES [SCORES ...]

SCORES are folders that `benchmarks.search --scores` has written. A quarter of the known test images makes the
scale of a combination, the others measure it, as held-out images do in a run. Writes
benchmarks/results/search/scores.json.
"""

import argparse
from pathlib import Path

import numpy as np
import torch

from pmal._runtime.files import write_json
from pmal._runtime.manifest import describe_environment
from pmal.rejection.scores import ScoreScale, combined_score, logit_score, probability_score
from pmal.reporting.metrics import auroc

OUT = Path(__file__).parent / "results" / "search" / "scores.json"
COMBINATIONS = (
    {"logit": 1, "neighbors": 1},
    {"logit": 1, "distance": 1},
    {"probability": 1, "neighbors": 1},
    {"distance": 1, "neighbors": 1},
    {"logit": 2, "neighbors": 1},
    {"distance": 1, "neighbors": 1, "logit": 1},
    {"distance": 1, "neighbors": 2, "logit": 1},
    {"distance": 1, "neighbors": 1, "logit": 2},
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", type=Path, nargs="+")
    files = [file for folder in parser.parse_args().folders for file in sorted(folder.glob("*--pmal*.npz"))]
    rows = [measure(file) for file in files]
    write_json(OUT, {"rows": rows, "manifest": describe_environment(torch.device("cpu"))})
    print(f"{len(rows)} networks: {OUT}")


def measure(file: Path) -> dict:
    """AUROC of every score and combination of one network."""
    problem, _, settings = file.stem.partition("--pmal")
    arrays = np.load(file)
    known, unknown = (scores_of(arrays, part) for part in ("known", "unknown"))
    order = np.random.default_rng(0).permutation(len(known["logit"]))
    scaled, measured = order[: len(order) // 4], order[len(order) // 4 :]
    tested = {name: values[measured] for name, values in known.items()}
    found = {name: float(auroc(tested[name], unknown[name])) for name in known}
    for weights in COMBINATIONS:
        scale = ScoreScale.fit({name: known[name][scaled] for name in weights}, weights)
        found[label(weights)] = float(auroc(*(combined_score(part, scale) for part in (tested, unknown))))
    words = settings.replace("-optimization.", " optimization.").strip()
    return {"problem": problem, "settings": words, "auroc": found}


def label(weights: dict[str, int]) -> str:
    """As in a table."""
    return ", ".join(f"{weight} {name}" if weight > 1 else name for name, weight in weights.items())


def scores_of(arrays, part: str) -> dict[str, torch.Tensor]:
    logits_NK = torch.from_numpy(arrays[f"{part}.plain.logits"])
    return {
        "probability": probability_score(logits_NK),
        "logit": logit_score(logits_NK),
        "distance": torch.from_numpy(arrays[f"{part}.plain.distances"]).double().amin(dim=1),
        "neighbors": torch.from_numpy(arrays[f"{part}.plain.neighbors"]).double(),
    }


if __name__ == "__main__":
    main()
