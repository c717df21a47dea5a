"""Tables of measurements: scikit-learn's digits, wine and breast cancer.

    python examples/other_data/tables.py

Some classes are known, the others are unknown. Of breast cancer, only the benign samples are known: one class
alone is told from all else.
"""

from comparison import open_set, run
from sklearn.datasets import load_breast_cancer, load_digits, load_wine

KNOWN = {
    "digits": (load_digits, range(6)),
    "wine": (load_wine, (0, 2)),
    "breast cancer": (load_breast_cancer, (1,)),
}


def problems(seed=0):
    for name, (load, known) in KNOWN.items():
        X, y = load(return_X_y=True)
        yield open_set(f"{name}, {len(known)} of {len(set(y))} classes", X, y, list(known), seed)


if __name__ == "__main__":
    run(problems())
