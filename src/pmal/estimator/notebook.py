"""What a notebook shows of a fitted classifier."""

import contextlib
import html
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import pmal
from pmal.errors import UsageError

PAGE = "docs/estimator.md"
_SHOWN = 8
_STYLE = "text-align:left;padding:2px 12px 2px 0;vertical-align:top"


def describe_fitted(classifier: Any) -> str:
    """Return a table in HTML: classes, what rejects and from where on, prototypes, and the page to read."""
    model = classifier.model_
    rows = {
        "classes": _listed([str(label) for label in classifier.classes_.tolist()]),
        "unknown": html.escape(repr(classifier.unknown_label)),
        "rejects by": html.escape(model.rule.score),
        "threshold": html.escape(_threshold(model)),
        "prototypes": html.escape(_prototypes(model)),
        "read more": _link(),
    }
    cells = (f'<tr><th style="{_STYLE}">{k}</th><td style="{_STYLE}">{v}</td></tr>' for k, v in rows.items())
    return f'<table class="pmal-fitted">{"".join(cells)}</table>'


def _threshold(model: Any) -> str:
    try:
        limits = sorted(set(model.limits().tolist()))
    except UsageError:
        return "none: no samples were held out"
    text = f"{limits[0]:.4g}" if len(limits) == 1 else f"{limits[0]:.4g} to {limits[-1]:.4g}, by class"
    return f"{text} ({model.guarantee()[1]})"


def _prototypes(model: Any) -> str:
    if not model.gallery:
        return "none"
    counts = [len(members) for members in model.gallery]
    each = str(counts[0]) if len(set(counts)) == 1 else f"{min(counts)} to {max(counts)}"
    return f"{sum(counts)}, {each} of each class"


def _listed(names: Sequence[str]) -> str:
    some = ", ".join(html.escape(name) for name in names[:_SHOWN])
    rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{len(names)}: {some}{rest}"


def _link() -> str:
    """Return a link to the documentation.

    It leads to where the package says it is, or to the page that lies next to its source.
    """
    file = Path(pmal.__file__).parents[2] / PAGE
    address = ""
    with contextlib.suppress(metadata.PackageNotFoundError):  # run from its source
        given = metadata.metadata("pmal").get_all("Project-URL") or []
        address = dict(url.split(", ", 1) for url in given).get("Documentation", "")
    target = f"{address.rstrip('/')}/estimator.html" if address else file.as_uri() if file.is_file() else ""
    return f'<a href="{html.escape(target)}">{PAGE}</a>' if target else PAGE
