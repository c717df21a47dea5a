"""Run the notebooks of examples/ from top to bottom, and store what their cells show.

    python scripts/run_notebooks.py                           # all of them
    python scripts/run_notebooks.py examples/own_photos.ipynb

A notebook is run in an empty folder by Python alone, without Jupyter: a cell shows what it prints and the
value of its last line.
"""

import ast
import base64
import contextlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

NOTEBOOKS = sorted((Path(__file__).parents[1] / "examples").glob("*.ipynb"))


def run_notebook(notebook: dict[str, Any]) -> dict[str, Any]:
    """Return the notebook with the outputs of its cells, which are run in the current folder."""
    names: dict[str, Any] = {"__name__": "__main__"}
    cells, count = [], 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            count += 1
            cell = cell | {"execution_count": count, "outputs": run_cell(cell, names, count)}
        cells.append(cell)
    return notebook | {"cells": cells}


def run_cell(cell: dict[str, Any], names: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """Return the outputs of a cell: what it prints, and the value of its last line."""
    tree, printed, value = ast.parse("".join(cell["source"])), io.StringIO(), None
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, f"cell {count}", "exec"), names)  # noqa: S102
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), f"cell {count}", "eval"), names)  # noqa: S307
    outputs: list[dict[str, Any]] = []
    if text := printed.getvalue():
        outputs.append({"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)})
    if value is not None:
        shown = {"data": shown_as(value), "execution_count": count, "metadata": {}}
        outputs.append(shown | {"output_type": "execute_result"})
    return outputs


def shown_as(value: Any) -> dict[str, Any]:
    """Return what Jupyter shows for a value: its text, and the picture of an image."""
    if picture := getattr(value, "_repr_png_", None):
        return {"image/png": base64.b64encode(picture()).decode(), "text/plain": ["an image"]}
    return {"text/plain": repr(value).splitlines(keepends=True)}


def main() -> None:
    """Run the notebooks that are named, or all, and write their outputs into them."""
    for path in map(Path.resolve, map(Path, sys.argv[1:] or NOTEBOOKS)):
        notebook, before = json.loads(path.read_text()), Path.cwd()
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            found = run_notebook(notebook)
            os.chdir(before)
        path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
        print(path.name)


if __name__ == "__main__":
    main()
