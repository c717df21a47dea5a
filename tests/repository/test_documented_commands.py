"""Every command and all Python in README and docs is run, in a small folder and with tiny trainings.

What is not run as it is written is said in RULES; a program that has no rule there fails its page.
"""

import dataclasses
import re
import shutil
import subprocess
import threading
import tomllib
import urllib.request
import warnings

import numpy as np
import pytest

from pmal import pipeline
from pmal.benchmark import schedule
from pmal.benchmark.cells.cell import Cell
from pmal.commands import fit as fit_command
from pmal.data.sources import readers
from pmal.encoders import create_encoder, registry
from pmal.methods import METHODS, SCORES
from pmal.reporting.page.numbers import tsne_layout
from pmal.serving.http import server as service_server
from pmal.speed import contestants
from pmal.speed import measuring as bench
from pmal.speed.prediction import PredictionPlan
from tests.support.documented import PAGES, ROOT, blocks_of, calls_of, make_sandbox
from tests.support.hanging import HANGING, wait_for

pytestmark = pytest.mark.slow

PETS = ("fit", "photos/", "--known", "cat,dog,owl", "--out", "runs/pets")
WITH_COMMANDS = [
    page for page in PAGES if any(block.kind in ("sh", "python") for block in blocks_of(page.read_text()))
]
CURL = shutil.which("curl")
SERVED_AT = "127.0.0.1:8000"
LARGE = ("oscri", "wide_resnet", "resnet18", "resnet50")
ANSWERS = {"zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "unknown"}
"""Of the tutorial: which of them a model gives is not what is tested."""


def smaller(config):
    """The same run on few images with one epoch of the smallest network. A wrong encoder is found before."""
    if config.encoder.name in LARGE:
        create_encoder(config.encoder.name, **config.encoder.options)
        config = dataclasses.replace(
            config, encoder=dataclasses.replace(config.encoder, name="small", options={})
        )
    training = dataclasses.replace(config.training, epochs=1, min_steps=0, batch_size=32)
    data = dataclasses.replace(config.data, limit=60, image_size=16)
    return dataclasses.replace(config, training=training, data=data)


@pytest.fixture
def tiny(monkeypatch):
    """Training, benchmark and measurement so small that every page takes seconds."""
    fit, config, missing, sizes = pipeline.fit, Cell.config, schedule.missing_cells, bench.choose_sizes
    monkeypatch.setattr(pipeline, "fit", lambda config, *rest, **more: fit(smaller(config), *rest, **more))
    monkeypatch.setattr(Cell, "config", lambda cell: smaller(config(cell)))
    # Of a benchmark's cells the first is computed; all are planned.
    monkeypatch.setattr(schedule, "missing_cells", lambda *about: missing(*about)[:1])
    monkeypatch.setattr(tsne_layout, "layout_method", lambda: "PCA")

    report, drawn = fit_command.report_after_fit, []

    def once(run, session):
        """A page's first report; `pmal report` draws as often as it is asked."""
        drawn.append(run)
        return report(run, session) if len(drawn) == 1 else run / "report.html"

    monkeypatch.setattr(fit_command, "report_after_fit", once)

    def few(*asked):
        case = contestants.Case("small", 16, 8, steps=2, classes=3, channels=1)
        plan = PredictionPlan(images=8, calls=2, repeats=1, seconds=0.01, bank=100)
        return dataclasses.replace(
            sizes(*asked), cases=(case,), mining=((100, 4),), mining_repeats=1, prediction=plan
        )

    monkeypatch.setattr(bench, "choose_sizes", few)
    # A page registers names of its own. Ours are imported before, or they would go with the first page's.
    for names in (registry.ENCODERS, METHODS, SCORES, readers.SOURCES):
        names._ours()
        monkeypatch.setattr(names, "_things", dict(names._things))


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """A folder as the pages assume it, with the run that the first of them makes, and a copy of it."""
    folder = tmp_path_factory.mktemp("documents") / "given"
    folder.mkdir()
    make_sandbox(folder)
    return folder


@pytest.fixture
def sandbox(given, tiny, call, monkeypatch):
    """That folder, as new: at the same place for every page, because a run knows where its images are."""
    here, kept = given.parent / "here", given.parent / "runs"
    shutil.rmtree(here, ignore_errors=True)
    shutil.copytree(given, here)
    monkeypatch.chdir(here)
    monkeypatch.setenv("PMAL_DATA", str(here / "data"))
    # They choose for a server, and for the tests after this one, too.
    monkeypatch.setattr(service_server, "leave_a_core", lambda: None)
    if not kept.exists():
        code, _, error = call(*PETS)
        assert code == 0, error
        shutil.copytree(here / "runs", kept)
    shutil.rmtree(here / "runs", ignore_errors=True)
    shutil.copytree(kept, here / "runs")
    return here


class Page:
    """A page's commands as they are run, one after another."""

    def __init__(self, blocks, sandbox, call, monkeypatch):
        self.call, self.monkeypatch = call, monkeypatch
        self.calls = {block: calls_of(block.text, sandbox) for block in blocks if block.kind == "sh"}
        self.curls = [words for calls in self.calls.values() for [name, *words] in calls if name == "curl"]
        self.shown = ""

    def run(self, block):
        self.shown = ""
        for name, *words in self.calls[block]:
            RULES[name](self, *words)

    def pmal(self, *words):
        if words[0] == "serve":
            return self.serve(*words)
        code, shown, error = self.call(*words)
        assert code == 0, f"pmal {' '.join(words)}\n{error}"
        self.shown += shown + error
        return None

    def torchrun(self, *words):
        """Its options are checked by its own parser; the command behind them is run by one process."""
        from torch.distributed.run import get_args_parser

        asked = get_args_parser().parse_args(words)
        assert (asked.module, asked.training_script) == (True, "pmal")
        self.pmal(*asked.training_script_args)

    def serve(self, *words):
        """A real server on a free port. It is asked what the page asks by curl, and ended."""
        make_server, failures = service_server.make_server, []

        def visited(*words, **options):
            server = make_server(*words, **options)
            run = server.run

            def run_and_visit(sockets):
                visitor = threading.Thread(target=self.visit, args=(server, sockets[0], failures))
                visitor.start()
                run(sockets=sockets)
                visitor.join()

            server.run = run_and_visit
            return server

        with self.monkeypatch.context() as patch:
            patch.setattr(service_server, "make_server", visited)
            code, shown, error = self.call(*words, "--port", "0")
        assert not failures, failures
        assert code == 0, error
        self.shown += shown

    def visit(self, server, listener, failures):
        try:
            wait_for(lambda: server.started)
            address = f"127.0.0.1:{listener.getsockname()[1]}"
            assert urllib.request.urlopen(f"http://{address}/readyz").status == 200
            for words in self.curls if CURL else ():
                asked = [word.replace(SERVED_AT, address) for word in words]
                assert asked != words, f"curl {words}: not to the address of pmal serve"
                command = [CURL, "-sS", "--fail", *asked]
                subprocess.run(command, check=True, capture_output=True, timeout=HANGING)
        except Exception as error:
            failures.append(error)
        finally:
            server.should_exit = True

    def curl(self, *words):
        """Was run beside `pmal serve`, which the page must have."""
        assert any(call[:2] == ["pmal", "serve"] for calls in self.calls.values() for call in calls)

    def make(self, *words):
        """Not run, because it installs: the target must exist."""
        assert all(re.search(rf"^{word}:", (ROOT / "Makefile").read_text(), re.M) for word in words)

    def pip(self, *words):
        """Not run: the folder, or the extras, that are installed must exist."""
        if words[0] == "install" and (ROOT / words[-1] / "pyproject.toml").is_file():
            return
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        [extras] = re.fullmatch(r"install (?:-e )?\.\[([\w,]+)\]", " ".join(words)).groups()
        assert set(extras.split(",")) <= set(project["optional-dependencies"])


RULES = {
    "pmal": Page.pmal,
    "torchrun": Page.torchrun,
    "curl": Page.curl,
    "make": Page.make,
    "pip": Page.pip,
}


def python_names(sandbox):
    """What the pages' lines of Python take for granted."""
    with np.load(sandbox / "features.npz") as features:
        names = dict(features)
    images = sorted((sandbox / "photos").glob("*/*.png"))
    names |= {"images": images, "names": [path.parent.name for path in images]}
    return names | {"more": sorted((sandbox / "holiday").iterdir()) * 6, "__name__": "__main__"}


def made_by(words):
    """The run that a command makes; `--from` changes one that is there."""
    makes = "fit" in words and "--out" in words and "--from" not in words
    return [words[words.index("--out") + 1]] if makes else []


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_page_says_to_run_runs(page, sandbox, call, monkeypatch):
    blocks = blocks_of(page.read_text())
    commands = Page(blocks, sandbox, call, monkeypatch)
    own = {out for calls in commands.calls.values() for words in calls for out in made_by(words)}
    for run in own:  # a run that the page makes is not there before
        shutil.rmtree(sandbox / run, ignore_errors=True)
    names = python_names(sandbox)
    for before, block in zip([None, *blocks], blocks, strict=False):
        where = f"{page.relative_to(ROOT)}:{block.line}"
        if block.kind == "sh":
            commands.run(block)
        elif block.kind == "python" and ">>> " not in block.text:
            with warnings.catch_warnings():
                # So few images as are taken here set no threshold.
                warnings.filterwarnings("ignore", "nothing will be rejected")
                exec(compile(block.text, where, "exec"), names)  # noqa: S102
        elif block.kind == "text" and before and before.kind == "sh":
            words = set(re.findall(r"[^\W\d]{3,}", block.text)) - ANSWERS
            missing = [word for word in words if word not in commands.shown]
            assert not missing, f"{where}: not in the output: {missing}\n{commands.shown}"
