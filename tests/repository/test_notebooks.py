"""The notebooks of examples/ run, and what is stored in them is what they show."""

import json
import re
import shutil
import subprocess
import sys

import pytest

from tests.support.documented import ROOT
from tests.support.hanging import HANGING

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def shown(notebook):
    """The kind of each output of each cell, and the words in it; figures differ from machine to machine."""
    cells = [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]
    return [
        [
            (output["output_type"], re.findall(r"[^\W\d]{3,}", "".join(text_of(output))))
            for output in cell["outputs"]
        ]
        for cell in cells
    ]


def text_of(output):
    return output.get("text") or output["data"]["text/plain"]


def test_notebooks_are_small_and_have_their_outputs():
    assert len(NOTEBOOKS) >= 2
    for notebook in NOTEBOOKS:
        assert notebook.stat().st_size < 50_000
        assert sum(map(len, shown(notebook))) >= 4


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_shows_what_is_stored_in_it(notebook, tmp_path):
    copy = shutil.copy(notebook, tmp_path)
    words = [sys.executable, str(ROOT / "scripts" / "run_notebooks.py"), str(copy)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=HANGING)
    assert done.returncode == 0, done.stderr
    assert shown(tmp_path / notebook.name) == shown(notebook)
