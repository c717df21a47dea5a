import json
import os
import platform
import re
import shutil
import subprocess

import numpy
import PIL
import pyarrow
import pytest
import torch

import pmal
from pmal._runtime import manifest
from pmal._runtime.manifest import code_revision, describe_environment

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A copy of the package's place: tmp_path/pmal/__init__.py, not in git yet."""
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "PMAL_REVISION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    folder = tmp_path / "pmal"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    monkeypatch.setattr(pmal, "__file__", str(folder / "__init__.py"))
    return folder


def git(folder, *words):
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(folder), *identity, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def commit(folder):
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "--no-verify", "-m", "all")
    return git(folder, "rev-parse", "HEAD")


@needs_git
def test_the_revision_and_whether_the_code_differs_from_it(package):
    revision = commit(package.parent)
    assert re.fullmatch("[0-9a-f]{40,64}", revision)
    assert code_revision() == revision
    (package.parent / "notes.txt").write_text("beside the code")
    assert code_revision() == revision
    (package / "new.py").write_text("")
    assert code_revision() == revision + "+changes"
    (package / "new.py").unlink()
    (package / "__init__.py").write_text("changed = True")
    assert code_revision() == revision + "+changes"


@needs_git
def test_asking_for_the_revision_writes_nothing_into_the_repository(package):
    """A run that is killed meanwhile would leave git's lock behind."""
    revision = commit(package.parent)
    index = package.parent / ".git" / "index"
    before = index.read_bytes()
    os.utime(package / "__init__.py", (1, 1))  # git would note the new time
    assert code_revision() == revision
    assert index.read_bytes() == before


@needs_git
def test_the_revision_of_a_repository_that_ignores_the_code_is_not_its_own(package, monkeypatch):
    (package.parent / ".gitignore").write_text("pmal/\n")
    commit(package.parent)
    assert code_revision() is None
    monkeypatch.setenv("PMAL_REVISION", "abc123")
    assert code_revision() == "abc123"


def test_outside_git_the_environment_says_it(package, monkeypatch):
    assert code_revision() is None
    monkeypatch.setenv("PMAL_REVISION", "abc123")
    assert code_revision() == "abc123"


def test_a_machine_without_git(package, monkeypatch):
    monkeypatch.setenv("PATH", str(package))
    assert code_revision() is None
    monkeypatch.setenv("PMAL_REVISION", "abc123")
    assert code_revision() == "abc123"


def test_a_git_that_hangs_does_not_hold_up_a_run(package, monkeypatch):
    def hang(command, *, timeout, **options):
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", hang)
    assert code_revision() is None


def test_versions_are_those_of_the_modules_in_use():
    about = describe_environment(torch.device("cpu"))
    assert about["pmal"] == pmal.__version__
    assert about["python"] == platform.python_version()
    for name, module in (("numpy", numpy), ("pillow", PIL), ("pyarrow", pyarrow)):
        assert about["libraries"][name] == module.__version__
    assert about["libraries"]["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert about["hardware"]["device"] == "cpu"
    assert json.loads(json.dumps(about)) == about


def test_a_library_that_is_not_installed_has_no_version(monkeypatch):
    monkeypatch.setattr(manifest, "LIBRARIES", ("numpy", "no-such-library"))
    found = describe_environment(torch.device("cpu"))["libraries"]
    assert found == {"numpy": numpy.__version__, "no-such-library": None}
