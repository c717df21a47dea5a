"""What README and docs say must be so: tables come from the results, commands exist."""

import functools
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.tables import DOCUMENTS, with_tables

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_tables_are_those_of_the_results(document):
    text = document.read_text()
    assert with_tables(text) == text, "run: python benchmarks/tables.py --write"


def commands():
    blocks = [block for path in DOCUMENTS for block in re.findall(r"```sh\n(.*?)```", path.read_text(), re.S)]
    lines = [line.split("#")[0].strip() for block in blocks for line in block.splitlines()]
    return sorted({line for line in lines if line.startswith("pmal ")})


def test_documented_options_exist():
    assert commands()
    for line in commands():
        words = shlex.split(line)[1:]
        command = words[: 2 if words[0] == "data" or words[:2] == ["benchmark", "table"] else 1]
        for option in (word for word in words if word.startswith("--")):
            assert option in shown_help(*command), f"{line}: {command} has no {option}"


@functools.cache
def shown_help(*command):
    words = [sys.executable, "-m", "pmal", *command, "--help"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def test_sources_are_documented_where_people_look():
    from pmal.data.sources.registry import list_sources

    text = (ROOT / "docs" / "data.md").read_text()
    missing = [info.name for info in list_sources() if f"`{info.name}`" not in text]
    assert not missing
