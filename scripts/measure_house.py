"""Measure the source tree: sizes, listings, file names, and the modules that a fit of the sample visits.

    python scripts/measure_house.py            # the tree
    python scripts/measure_house.py --fit      # and a traced fit of the sample, one epoch
    python scripts/measure_house.py --tests    # and the number of test cases

Run it in two checkouts to compare them. The seconds of the tests are printed by `make check` and `make test`.
What runs while a module is imported is not counted: only calls that the fit itself makes.
"""

import ast
import contextlib
import io
import itertools
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "pmal"
STAGES = (
    "data",
    "encoders",
    "ensemble",
    "geometry",
    "mining",
    "optimization",
    "rejection",
    "reporting",
    "serving",
)


def modules() -> list[Path]:
    """Return all modules of the package but the `__init__` files."""
    return sorted(file for file in PACKAGE.rglob("*.py") if file.stem != "__init__")


def lines_by_folder() -> Counter[str]:
    """Return the lines of Python in each folder of the package; `.` holds the modules at its top."""
    lines: Counter[str] = Counter()
    for file in PACKAGE.rglob("*.py"):
        place = file.relative_to(PACKAGE).parts
        lines[place[0] if len(place) > 1 else "."] += len(file.read_text().splitlines())
    return lines


def lines_of_code() -> int:
    """Return the lines of the package without blank ones, comments and docstrings."""
    count = 0
    for file in PACKAGE.rglob("*.py"):
        text = file.read_text()
        alone = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Expr)]
        words = [node for node in alone if isinstance(node.value, ast.Constant)]
        documented = {line for node in words for line in range(node.lineno, (node.end_lineno or 0) + 1)}
        code = [line.strip() for i, line in enumerate(text.splitlines(), 1) if i not in documented]
        count += sum(bool(line) and not line.startswith("#") for line in code)
    return count


def largest_listing() -> tuple[int, str]:
    """Return how many entries the fullest folder below the package has, and its name."""
    rooms = {file.parent for file in PACKAGE.rglob("*.py")} - {PACKAGE}
    count = {room: sum(not entry.name.startswith("__") for entry in room.iterdir()) for room in rooms}
    fullest = max(sorted(count), key=count.__getitem__)
    return count[fullest], str(fullest.relative_to(PACKAGE))


def duplicate_stems() -> list[str]:
    """Return the file names that occur more than once."""
    names = Counter(file.stem for file in modules())
    return sorted(name for name, count in names.items() if count > 1)


def visited_modules(*options: str) -> list[Path]:
    """Return the modules whose functions a fit of the sample calls, in the order of the first calls.

    options: of the command, such as a smaller training set.
    """
    sys.path.insert(0, str(PACKAGE.parent))  # this checkout, not an installed package
    from typer.testing import CliRunner

    from pmal.cli import app

    visited: list[Path] = []
    seen: set[str] = set()
    prefix = str(PACKAGE)

    def note(frame: FrameType, event: str, arg: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name not in seen and name.startswith(prefix) and not importing(frame):
            seen.add(name)
            visited.append(Path(name))

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        sys.setprofile(note)
        try:
            result = CliRunner().invoke(
                app, ["fit", "--out", f"{folder}/run", "--epochs", "1", "--no-report", *options]
            )
        finally:
            sys.setprofile(None)
    if result.exit_code:
        sys.exit(f"the fit ended with {result.exit_code}: {result.output}")
    return visited


def importing(frame: FrameType | None) -> bool:
    """Return whether a module of the package is being imported, as when the body of a class runs."""
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_code.co_filename.startswith(str(PACKAGE)):
            return True
        frame = frame.f_back
    return False


def crossings(visited: list[Path]) -> tuple[int, int]:
    """Return how often the next new module lies in a stage to the right, and to the left."""
    places = [file.relative_to(PACKAGE).parts[0] for file in visited]
    order = [STAGES.index(place) for place in places if place in STAGES]
    pairs = list(itertools.pairwise(order))
    return sum(b > a for a, b in pairs), sum(b < a for a, b in pairs)


def test_cases(*options: str) -> int:
    """Return how many test cases pytest collects."""
    words = [sys.executable, "-m", "pytest", "-q", "--collect-only", *options]
    listed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return sum(map(int, re.findall(r": (\d+)$", listed, re.M)))


def main() -> None:
    """Print the figures."""
    lines = lines_by_folder()
    print(f"modules {len(modules())}, lines {sum(lines.values()):,}, of code {lines_of_code():,}")
    print("  " + ", ".join(f"{folder} {count:,}" for folder, count in lines.most_common()))
    print("largest listing: {} entries in {}".format(*largest_listing()))
    print(f"file names that occur twice: {', '.join(duplicate_stems()) or 'none'}")
    if "--tests" in sys.argv:
        print(f"test cases {test_cases():,}, in `make check` {test_cases('-m', 'not slow'):,}")
    if "--fit" in sys.argv:
        visited = visited_modules()
        right, left = crossings(visited)
        print(f"a fit of the sample visits {len(visited)} modules; first visits go {right} times to a stage")
        print(f"  to the right and {left} times to one to the left")


if __name__ == "__main__":
    main()
