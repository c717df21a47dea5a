"""Inputs with which fuzzing broke a reader once: each is answered or refused in one line."""

from pathlib import Path

import pytest

from benchmarks.fuzz import ask
from benchmarks.fuzz_readers import READERS

FOUND = sorted(Path(__file__).with_name("found").iterdir())


@pytest.mark.parametrize("file", FOUND, ids=lambda file: file.name)
def test_what_was_found_is_mended(file, tmp_path):
    name = next(name for name in READERS if file.name.startswith(name.replace(" ", "-")))
    said, sound = ask(name, file.read_bytes(), tmp_path)
    assert sound, said
