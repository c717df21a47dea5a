"""What a trial of the whole program found: each of these failed once."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from pmal import pipeline
from pmal._runtime.memory import memory_bytes
from pmal.config import RunConfig, build, merge
from pmal.data.sources._spool import make_spool, remove_dead_spools
from pmal.run.run_folder import check_sums
from tests.support.tiny_settings import TINY

SHORT = ["--set", "data.limit=40", "--epochs", "1", "--no-report", "--set", "data.image_size=12"]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Somebody's folder, with photos in it and a run on them."""
    folder, random = tmp_path_factory.mktemp("home-of-somebody"), np.random.default_rng(0)
    for name, level in (("cat", 60), ("dog", 130), ("owl", 200)):
        (folder / "photos" / name).mkdir(parents=True)
        for i in range(24):
            pixels = random.normal(level, 12, (12, 12)).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / "photos" / name / f"{i}.png")
    (folder / "photos" / "dog" / "bad.png").write_bytes(b"no image")
    data = {**TINY["data"], "source": str(folder / "photos"), "known": ["cat", "dog"]}
    pipeline.fit(build(RunConfig, merge(TINY, {"data": data})), folder / "run")
    return folder


@pytest.mark.slow
def test_no_artifact_names_the_folder_in_which_the_images_lie(home, call):
    run = home / "run"
    for words in (["export", run], ["report", run], ["evaluate", run]):
        assert call(*words)[0] == 0
    kept = [file for file in run.rglob("*") if file.is_file() and file.name not in ("config.toml", ".lock")]
    assert {"model.json", "model.onnx", "model.md", "report.html", "prototypes.json", "manifest.json"} <= {
        file.name for file in kept
    }
    assert [file.name for file in kept if str(home).encode() in file.read_bytes()] == []
    files = [
        p["file"]
        for entry in json.loads((run / "model/model.json").read_text())["classes"]
        for p in entry["prototypes"]
    ]
    assert all(file.startswith(("cat/", "dog/")) for file in files)
    assert '"dog/bad.png"' in (run / "quarantine.json").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("words", [["report"], ["evaluate"], ["export", "--force"]])
def test_a_figure_that_somebody_has_edited_reaches_no_report_and_no_card(home, call, words):
    figures = home / "run" / "metrics.json"
    before = figures.read_text()
    try:
        figures.write_text(before.replace("0.", "0.9", 1))
        code, out, error = call(words[0], home / "run", *words[1:])
    finally:
        figures.write_text(before)
    assert (code, out) == (3, "")
    assert f"{figures}: not the file that the run has left" in error
    assert "--from" in error


def test_a_spool_of_a_process_that_was_killed_is_removed_by_the_next(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    code = "import os, signal\nfrom pmal.data.sources._spool import make_spool\n"
    code += "class A: pass\na = A()\n(make_spool(a) / 'images').write_bytes(bytes(9))\n"
    code += "os.kill(os.getpid(), signal.SIGKILL)"
    subprocess.run([sys.executable, "-c", code], check=False)
    assert len(list(tmp_path.glob("pmal-spool-*/images"))) == 1

    class Owner:
        pass

    owner = Owner()
    mine = make_spool(owner)
    assert list(tmp_path.glob("pmal-spool-*")) == [mine]
    remove_dead_spools()  # not that of a process that lives
    assert mine.is_dir()
    del owner
    assert not mine.exists()


@pytest.mark.slow
@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams_change_nothing_but_that_nobody_reads_them(tmp_path, closed):
    words = f"exec {sys.executable} -m pmal data list {closed}"
    assert subprocess.run(["sh", "-c", words]).returncode == 0
    words = f"exec {sys.executable} -m pmal predict nothing x.png {closed}"
    assert subprocess.run(["sh", "-c", words], capture_output=True).returncode == 3


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_standard_error_on_a_full_disk_is_no_failure(tmp_path):
    Image.new("L", (12, 12)).save(tmp_path / "x.png")
    golden = Path(__file__).with_name("golden") / "0.2" / "model.onnx"
    words = f"exec {sys.executable} -m pmal predict {golden} {tmp_path / 'x.png'} 2>/dev/full"
    assert subprocess.run(["sh", "-c", words], capture_output=True).returncode == 0


@pytest.mark.slow
def test_a_whole_fit_without_streams_leaves_no_word_in_its_files(tmp_path):
    words = " ".join(
        [sys.executable, "-m", "pmal", "fit", "--out", str(tmp_path / "run"), *SHORT, ">&- 2>&-"]
    )
    assert subprocess.run(["sh", "-c", f"exec {words}"]).returncode == 0
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert all("run folder" not in line for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines())


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(12, "Cannot allocate memory"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0 has"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory: you"),
        np._core._exceptions._ArrayMemoryError((9,), np.dtype(float)),
        ImportError("x.so: failed to map segment from shared object"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_no_memory_is_one_line_with_what_to_lower(call, monkeypatch, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(pipeline, "fit", fail)
    code, out, said = call("fit", "--out", "nowhere")
    assert (code, out) == (1, "")
    assert said.count("\n") == 1
    assert said.startswith("error: out of memory (")
    assert "training.batch_size" in said
    assert "--memory-limit" in said


def test_memory_is_what_a_limit_leaves():
    code = "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 33, 1 << 33))\n"
    code += "from pmal._runtime.memory import memory_bytes; print(memory_bytes())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) <= 1 << 33
    assert 0 < memory_bytes() <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.mark.slow
def test_other_kernels_are_told_of_when_a_training_goes_on(tmp_path):
    words = [sys.executable, "-c", INTERRUPTED, str(tmp_path / "run")]
    subprocess.run(
        words, check=False, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert list(Path(tmp_path).rglob("checkpoint.json"))
    code = INTERRUPTED.replace("    if step == 2: raise KeyboardInterrupt\n", "")
    words[2] = code
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "2"})
    assert done.returncode == 0, done.stderr
    assert "begun with threads 1, now 2" in done.stderr
    assert "not the same to the bit" in done.stderr


INTERRUPTED = """
import sys
from pathlib import Path
from pmal import pipeline
from pmal._engine import loop
from pmal._runtime.progress import Lines
from pmal._runtime.session import open_session
from pmal.config import Resources, RunConfig, build
from tests.support.tiny_settings import TINY
step, old = 0, loop._Loop.run_step
def run_step(self, *args):
    global step
    step += 1
    if step == 2: raise KeyboardInterrupt
    old(self, *args)
loop._Loop.run_step = run_step
session = open_session(Resources("cpu", checkpoint_seconds=0.0), Lines())
pipeline.fit(build(RunConfig, TINY), Path(sys.argv[1]), session)
"""


def test_a_class_whose_checksums_could_not_be_written_is_there_when_it_is_added_again(
    home, call, tmp_path, monkeypatch
):
    run = shutil.copytree(home / "run", tmp_path / "run")
    words = ("add-class", run, "owl", home / "photos" / "owl")

    def full(*_):
        raise OSError(28, "No space left on device", str(run / "manifest.json"))

    with monkeypatch.context() as patch:
        patch.setattr("pmal.run.run_folder.seal_again", full)
        assert call(*words)[0] == 1
    code, _, error = call(*words)
    assert (code, "exists already" in error) == (2, True)
    check_sums(run)
