"""The p-values of answers in files: what `pmal predict --json` or `--csv` printed, or `pmal serve` kept.

Imports no torch.
"""

import csv
import io
import json
from pathlib import Path
from typing import Any

from pmal.errors import DataError

LIMIT = 1 << 30
"""Bytes of a file at most: more than a million answers."""
KEPT = ("watched", "p_value")
"""The columns of what a service kept: the model and score that a p-value is of, and the p-value."""


def watched_name(fingerprint: str, score: str) -> str:
    """Return what stands in the column `watched` for answers of a model by a score."""
    return f"{fingerprint[:16]}:{score}"


def read_p_values(path: Path, watched: str | None = None) -> list[float]:
    """Return the p-values of the answers in a file, in its order.

    Args:
        path: the file.
        watched: of a file that a service kept, only the answers of this model and score.

    Raises:
        DataError: the file holds no answers, or answers without p-values.
    """
    text = _text(path)
    try:
        if text.lstrip().startswith("{"):
            return [float(answer["p_value"]) for answer in json.loads(text)["answers"]]
        return [float(value) for value in _of_csv(text, watched)]
    except (KeyError, TypeError, ValueError, RecursionError, csv.Error):
        fix = "pass what `pmal predict --json` or --csv printed, of a model with held-out images"
        raise DataError(f"{path}: no answers with p-values in it: {fix}") from None


def _of_csv(text: str, watched: str | None) -> list[Any]:
    if text.startswith(",".join(KEPT) + "\n"):
        text = text[: text.rfind("\n") + 1]  # a line that is not whole yet is still being written
    reader = csv.DictReader(io.StringIO(text, newline=""))
    if "p_value" not in (reader.fieldnames or ()):
        raise KeyError("p_value")
    return [row["p_value"] for row in reader if watched is None or row.get("watched", watched) == watched]


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > LIMIT:
            raise DataError(f"{path}: larger than {LIMIT >> 30} GiB: split it")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise DataError(f"{path}: not text in UTF-8: pass answers as JSON or CSV") from None
