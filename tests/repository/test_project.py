"""The version is said once, and workflows, packages and templates fit together."""

import json
import re
import tomllib

import pytest
from typer.testing import CliRunner

import pmal
from pmal.cli import app
from scripts.pin_hashes import pinned
from tests.support.documented import PAGES, ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
GITHUB = ROOT / ".github"


def test_the_version_is_said_once():
    assert "version" in PROJECT["dynamic"]
    cited = re.findall(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.M)
    assert cited == [pmal.__version__], "CITATION.cff names the version of src/pmal/__init__.py"


def test_the_changelog_has_the_sections_of_keep_a_changelog():
    text = (ROOT / "CHANGELOG.md").read_text()
    newest, state = re.findall(r"^## \[(.+?)\] - (\S+)$", text, re.M)[0]
    assert pmal.__version__ == (f"{newest}.dev0" if state == "unreleased" else newest)
    assert set(re.findall(r"^### (.+)$", text, re.M)) <= {"Added", "Changed", "Fixed", "Removed", "Security"}


def test_workflows_use_targets_and_versions_that_are_there():
    yaml = pytest.importorskip("yaml", reason="workflows are read with PyYAML, which pmal[docs] brings")
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    workflows = {file.stem: yaml.safe_load(file.read_text()) for file in (GITHUB / "workflows").iterdir()}
    assert workflows.keys() == {"test", "docs", "release"}
    for workflow in workflows.values():
        assert workflow["permissions"].keys() == {"contents"}
        for job in workflow["jobs"].values():
            assert job["timeout-minutes"] <= 60
            commands = "\n".join(step.get("run", "") for step in job["steps"])
            assert set(re.findall(r"^make ([\w-]+)", commands, re.M)) <= targets
    versions = workflows["test"]["jobs"]["test"]["strategy"]["matrix"]["python"]
    assert [f"Programming Language :: Python :: {v}" for v in versions] == [
        line for line in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)
    ]
    assert PROJECT["requires-python"] == f">={versions[0]}"


def test_packages_of_a_release_are_pinned_by_checksum():
    def package(name, **about):
        return {"metadata": {"name": name, "version": "1"}, "download_info": {"url": "x", **about}}

    summed = {"archive_info": {"hashes": {"sha256": "ab"}}}
    report = {
        "install": [package("pmal", dir_info={}), package("torch", **summed), package("Rich", **summed)]
    }
    assert pinned(report) == "Rich==1 --hash=sha256:ab\ntorch==1 --hash=sha256:ab\n"
    with pytest.raises(ValueError, match=r"rich 1: .* no SHA-256"):
        pinned({"install": [package("rich", archive_info={})]})


def test_issue_forms_ask_for_something():
    yaml = pytest.importorskip("yaml", reason="forms are read with PyYAML, which pmal[docs] brings")
    for file in (GITHUB / "ISSUE_TEMPLATE").iterdir():
        form = yaml.safe_load(file.read_text())
        assert {"name", "description", "body"} <= form.keys()
        assert all(field["attributes"]["label"] for field in form["body"])


def test_no_page_promises_a_release_that_is_not_there():
    """Messages may say `pip install 'pmal[extra]'`: pip then adds the extra to what is installed."""
    pages = [*PAGES, *ROOT.glob("*.md")]
    promised = re.compile(r"pip install (?:-\S+ )*'?pmal\b")
    assert not [str(page) for page in pages if promised.search(page.read_text())]


def test_the_deployed_service_has_no_rights_and_options_that_are_there():
    """No test builds the image or starts the unit: this is what a look at them finds."""
    shown = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"}).output
    docker, unit = ((ROOT / "docs" / "deploy" / name).read_text() for name in ("Dockerfile", "pmal.service"))
    steps = [line.split(None, 1) for line in docker.splitlines() if line and line[0] not in "# "]
    assert [name for name, _ in steps if name not in ("RUN", "WORKDIR", "ENV", "EXPOSE")] == [
        *("FROM", "COPY", "COPY", "USER", "HEALTHCHECK", "ENTRYPOINT"),
    ]
    given = dict(steps)
    assert ":" in given["FROM"]
    assert int(given["USER"]) > 0
    copied = [word for name, words in steps if name == "COPY" for word in words.split()[:-1]]
    assert all((ROOT / name).exists() for name in copied)
    entry = json.loads(given["ENTRYPOINT"])
    start = re.search(r"^ExecStart=(.+)$", unit, re.M)[1]
    for words in (entry, start.split()):
        assert words[1] == "serve"
        assert all(word in shown for word in words if word.startswith("--"))
    for line in ("DynamicUser=yes", "NoNewPrivileges=yes", "ProtectSystem=strict", "CapabilityBoundingSet="):
        assert line in unit.splitlines()
