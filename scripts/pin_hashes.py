"""Print what pip would install as requirements with checksums, for `pip install --require-hashes`.

    pip install --dry-run --ignore-installed --report report.json -c constraints.txt pmal.whl
    python scripts/pin_hashes.py report.json > requirements.txt

The checksums are those of the files for this platform and this Python. What pip takes from this machine, as
the wheel itself, is left out.
"""

import json
import sys
from pathlib import Path
from typing import Any


def pinned(report: dict[str, Any], without: str = "pmal") -> str:
    """Return a line for each package of a report by pip, sorted by name.

    Raises:
        ValueError: a package has no SHA-256.
    """
    lines = []
    for one in report["install"]:
        name, version = one["metadata"]["name"], one["metadata"]["version"]
        if name == without:
            continue
        digest = one["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256")
        if not digest:
            raise ValueError(f"{name} {version}: pip's report has no SHA-256 of it")
        lines.append(f"{name}=={version} --hash=sha256:{digest}")
    return "".join(f"{line}\n" for line in sorted(lines, key=str.lower))


if __name__ == "__main__":
    print(pinned(json.loads(Path(sys.argv[1]).read_text())), end="")
