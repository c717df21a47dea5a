"""A stage imports only stages to its left, so that the folder listing is the data flow."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import pmal
from scripts.measure_house import STAGES, crossings, duplicate_stems, largest_listing, visited_modules

PACKAGE = Path(pmal.__file__).parent
BELOW_ALL = {"_runtime", "config", "errors", "methods", "plugins", "run"}
# Methods to compare with, and the grid that runs them, use the stages; no stage uses them.
ALLOWED = {stage: BELOW_ALL | {"_engine"} | set(STAGES[: i + 1]) for i, stage in enumerate(STAGES)}
ALLOWED["data"] = BELOW_ALL | {"data"}  # the engine is fed by it
ALLOWED["_engine"] = BELOW_ALL | {"_engine", "data"}
ALLOWED["_runtime"] = {"_runtime", "config", "errors"}
ALLOWED["run"] = BELOW_ALL
ALLOWED["baselines"] = BELOW_ALL | {"_engine", "baselines"} | set(STAGES[: STAGES.index("rejection") + 1])
ALLOWED["benchmark"] = BELOW_ALL | {"_engine", "benchmark", "baselines", "pipeline"} | set(STAGES)
ALLOWED["speed"] = BELOW_ALL | {"_engine", "speed"} | set(STAGES)
ALLOWED["config"] = {"errors"}
ALLOWED["errors"] = set()
ALLOWED["plugins"] = {"errors"}
ALLOWED["methods"] = {"baselines", "plugins"}  # the former register themselves
SHELLS = {
    "__init__",
    "__main__",
    "cli",
    "commands",
    "defaults",
    "estimator",
    "pipeline",
}


def imported_modules(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            # `from pmal import x` imports the module x
            yield from (
                (f"pmal.{a.name}" for a in node.names) if node.module == "pmal" else [node.module or ""]
            )


def module_files() -> list[tuple[str, Path]]:
    files = [(f.relative_to(PACKAGE).parts[0].removesuffix(".py"), f) for f in sorted(PACKAGE.rglob("*.py"))]
    return [(stage, file) for stage, file in files if stage not in SHELLS]


def test_imports_only_to_the_left():
    wrong = {}
    for stage, file in module_files():
        used = {name.split(".")[1] for name in imported_modules(file) if name.startswith("pmal.")}
        if not_allowed := used - {"__version__"} - ALLOWED[stage]:
            wrong[str(file.relative_to(PACKAGE))] = sorted(not_allowed)
    assert not wrong


def test_nothing_of_ours_is_imported_by_a_string():
    """Such an import is hidden from the test above."""
    hidden = {"pmal/geometry/kernels.py"}  # one of the files of its own room
    found = {
        f"pmal/{file.relative_to(PACKAGE)}"
        for file in PACKAGE.rglob("*.py")
        if re.search(r"import_module\(f?\"pmal", file.read_text())
    }
    assert found == hidden


def test_no_file_name_has_two_meanings():
    assert not duplicate_stems()


def test_every_folder_is_a_stage():
    folders = {f.name for f in PACKAGE.iterdir() if f.is_dir() and f.name not in ("__pycache__", "recipes")}
    assert folders <= set(ALLOWED) | SHELLS


def test_no_room_is_crowded():
    """A listing that does not fit into one look hides where to go."""
    count, room = largest_listing()
    assert count <= 12, room


@pytest.mark.slow
def test_a_fit_goes_through_the_rooms_from_left_to_right():
    """By the first call into every module: each step to the left is a place that a reader has to jump to."""
    visited = visited_modules("--set", "data.limit=40", "--set", "encoder.name=small")
    right, left = crossings(visited)
    assert left <= 12, f"{left} steps to the left, {right} to the right"
    assert len(visited) <= 105
