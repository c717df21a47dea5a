"""Texts: which library is a docstring of?

    python examples/other_data/text.py

The docstrings of libraries that pmal needs anyway are read from their files. Three libraries are known, the
others unknown. TF-IDF and a truncated SVD, learned from the known training texts alone, make the embeddings.
The names of the libraries are taken out of all texts.
"""

import ast
import importlib.util
import re
import warnings
from pathlib import Path

import numpy as np
from comparison import open_set, run
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer

KNOWN, UNKNOWN = ("numpy", "scipy", "torch"), ("sklearn", "pyarrow", "rich")
NAMES = r"(?i)numpy|\bnp\b|scipy|torch|sklearn|scikit-learn|pyarrow|\bpa\b|rich"
EACH, SHORTEST, PARTS = 300, 200, 64


def docstrings(library, seed):
    """Return some docstrings of a library, from files that are parsed and never run."""
    folder, random = Path(importlib.util.find_spec(library).origin).parent, np.random.default_rng(seed)
    files = [path for path in sorted(folder.rglob("*.py")) if "test" not in str(path.relative_to(folder))]
    found = set()
    for i in random.permutation(len(files)):
        found |= {text for text in texts_of(files[i]) if len(text) >= SHORTEST}
        if len(found) >= 2 * EACH:
            break
    chosen = random.permutation(sorted(found))[:EACH]
    return [re.sub(NAMES, " ", text) for text in chosen]


def texts_of(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of escapes in their strings
        tree = ast.parse(path.read_bytes())
    kinds = ast.Module, ast.ClassDef, ast.FunctionDef
    return [ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, kinds)]


def problems(seed=0):
    texts = {library: docstrings(library, seed) for library in (*KNOWN, *UNKNOWN)}
    y = np.repeat(list(texts), [len(found) for found in texts.values()])
    raw = np.array([text for found in texts.values() for text in found], dtype=object)
    problem = open_set(f"docstrings, {len(KNOWN)} of {len(texts)} libraries", raw, y, KNOWN, seed)
    tfidf = TfidfVectorizer(sublinear_tf=True, min_df=2)
    embed = make_pipeline(tfidf, TruncatedSVD(PARTS, random_state=seed), Normalizer())
    train_X = embed.fit_transform(problem.train_X)
    yield problem._replace(
        train_X=train_X, test_X=embed.transform(problem.test_X), unknown_X=embed.transform(problem.unknown_X)
    )


if __name__ == "__main__":
    run(problems())
