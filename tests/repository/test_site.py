"""The documentation site builds without a warning, loads nothing from elsewhere, and leaves nothing out."""

import doctest
import os
import re
import runpy
import subprocess
import sys

import pytest

import pmal
from tests.support.documented import PAGES, ROOT
from tests.support.hanging import HANGING

pytestmark = pytest.mark.slow

pytest.importorskip("mkdocs", reason="the site needs pip install 'pmal[docs]'")
pytest.importorskip("mkdocstrings", reason="the site needs pip install 'pmal[docs]'")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(out)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=HANGING)
    assert done.returncode == 0, done.stderr
    return out


def test_every_page_is_in_it_and_in_its_navigation(site):
    home = (site / "index.html").read_text()
    for page in PAGES[1:]:
        uri = page.relative_to(ROOT / "docs").with_suffix(".html").as_posix()
        assert (site / uri).is_file()
        assert f'href="{uri}"' in home, f"{uri} is not in nav of mkdocs.yml"


def test_nothing_is_loaded_from_elsewhere(site):
    loading = re.compile(r"""<(?:script|img|iframe|link)\b[^>]*(?:src|href)=["']?(?:https?:)?//[^>]*>""")
    for page in site.rglob("*.html"):
        assert not loading.findall(page.read_text()), page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(?:https?:)?//|@import", sheet.read_text()), sheet


def test_links_to_the_repository_lead_to_its_files(site):
    assert 'href="repository/benchmarks/results/quality/index.html"' in (site / "mining.html").read_text()
    listing = (site / "repository/benchmarks/results/quality/index.html").read_text()
    [name, *_] = sorted(path.name for path in (ROOT / "benchmarks/results/quality").iterdir())
    assert f'href="{name}"' in listing
    assert (site / "repository/benchmarks/results/quality" / name).is_file()
    assert 'href="../report.html"' in (site / "repository/CHANGELOG.html").read_text()


def test_examples_of_the_hooks():
    names = runpy.run_path(str(ROOT / "scripts" / "site_hooks.py"))
    finder, runner = doctest.DocTestFinder(), doctest.DocTestRunner()
    for name in ("site_uri", "_option"):
        [found] = finder.find(names[name], name, module=False, globs=names)
        assert runner.run(found) == (0, 1)


def test_the_reference_has_every_public_name_command_and_setting(site):
    python = (site / "reference/python.html").read_text()
    assert [name for name in pmal.__all__ if not re.search(rf'id="pmal\.[\w.]*{name}"', python)] == []
    assert '<span class="gp">&gt;&gt;&gt; </span>' in python, "examples are shown as code"
    listed = r'<li class="doc-section-item field-body">\s+<b><code>landmarks</code>'
    assert re.search(listed, python), "parameters are shown as a list"
    commands = (site / "reference/commands.html").read_text()
    for id in ("pmal-fit", "pmal-benchmark-table", "pmal-data-splits", "pmal-serve"):
        assert f'id="{id}"' in commands
    assert "<code>--checkpoint-seconds" in commands
    settings = (site / "reference/settings.html").read_text()
    assert "<code>optimization.margin</code>" in settings
    assert "Images per step." in settings
