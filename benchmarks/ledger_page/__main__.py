"""The ledger of `pmal benchmark` as one HTML file: python -m benchmarks.ledger_page LEDGER [--out FILE]"""

import argparse
import sys
from importlib import resources
from pathlib import Path

from benchmarks.ledger_page.chapters import ledger_page
from pmal._runtime.files import write_text
from pmal.errors import PmalError
from pmal.reporting.page.document import check_can_render, render_page


def write_ledger_page(ledger: Path, out: Path | None = None) -> Path:
    """Write LEDGER/report.html, or `out`, and return its path. Files that cannot be read are told of."""
    check_can_render()
    path = out or ledger / "report.html"
    page = ledger_page(ledger, lambda line: print(line, file=sys.stderr))
    dots = (resources.files("benchmarks.ledger_page") / "dots.js").read_text(encoding="utf-8")
    write_text(path, render_page(page, dots))
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ledger", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    try:
        print(f"report: {write_ledger_page(options.ledger, options.out)}")
    except PmalError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
