"""What holds of the tests themselves."""

import ast
import re

from tests.support.documented import ROOT

TESTS = ROOT / "tests"
CLOCKS = {"time", "monotonic", "perf_counter", "process_time"}


def nodes(file):
    return list(ast.walk(ast.parse(file.read_text())))


def test_no_test_imports_another():
    """What several need stands in a module of its own."""
    pattern = re.compile(r"^\s*(?:from|import) (tests\S*\.test_\w+|tests\S* import test_)", re.M)
    assert not [file for file in TESTS.rglob("*.py") if pattern.search(file.read_text())]


def test_no_assertion_depends_on_how_long_something_took():
    """But for the end of what hangs, ten minutes after it should have come."""
    asserted = [
        (file.name, name.attr)
        for file in TESTS.rglob("*.py")
        for found in nodes(file)
        if isinstance(found, ast.Assert)
        for call in ast.walk(found)
        if isinstance(call, ast.Call) and isinstance(name := call.func, ast.Attribute) and name.attr in CLOCKS
    ]
    assert asserted == [("hanging.py", "monotonic")]
