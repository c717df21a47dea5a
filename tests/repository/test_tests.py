"""What holds of the tests themselves."""

import ast
import re

from tests.support.documented import ROOT

TESTS = ROOT / "tests"
CLOCKS = re.compile(r"\b(?:time|monotonic|perf_counter|process_time)\(")


def test_no_test_imports_another():
    """What several need stands in a module of its own."""
    pattern = re.compile(r"^\s*(?:from|import) (tests\S*\.test_\w+|tests\S* import test_)", re.M)
    assert not [file for file in TESTS.rglob("*.py") if pattern.search(file.read_text())]


def test_no_assertion_depends_on_how_long_something_took():
    """But for the end of what hangs, ten minutes after it should have come."""
    texts = {file.name: file.read_text() for file in TESTS.rglob("*.py")}
    asserted = [
        name
        for name, text in texts.items()
        if CLOCKS.search(text)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Assert) and CLOCKS.search(ast.unparse(node))
    ]
    assert asserted == ["hanging.py"]
