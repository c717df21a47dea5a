"""Mistakes that would pass for success, or cost a user's results, as a user meets them."""

import builtins
import errno
import io
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from pmal import cli
from pmal.__main__ import main
from pmal.data.sources import readers as registry
from pmal.run.run_folder import open_run, read_config
from tests.support.command_line import assert_one_line_error
from tests.support.report_runs import NAMES, write_photos

WORDS = ["--encoder", "small", "--epochs", 1, "--no-report", "--set", "training.batch_size=16"]


@pytest.fixture
def photos(tmp_path):
    return write_photos(tmp_path / "photos")


def test_images_too_large_for_a_step_are_refused_before_any_is_read(call, photos, tmp_path):
    result = call("fit", photos, *WORDS, "--out", tmp_path / "run", "--set", "data.image_size=1000000")
    assert_one_line_error(result, 2, "small at 1000000 px", "lower data.image_size")


@pytest.mark.parametrize("text", ["data=3", "encoder=small", "training.epochs=1.5"])
def test_an_option_by_name_does_not_hide_a_wrong_set(call, photos, tmp_path, text):
    result = call("fit", photos, *WORDS, "--out", tmp_path / "run", "--set", text)
    assert_one_line_error(result, 2, text.partition("=")[0], "expected")


@pytest.mark.parametrize("text", ["epochs = 3", '[training]\nepochs = "many"', "[training"])
def test_what_is_wrong_with_a_recipe_is_told_with_its_file(call, photos, tmp_path, text):
    recipe = tmp_path / "mine.toml"
    recipe.write_text(text)
    result = call("fit", photos, "--epochs", 1, "--recipe", recipe, "--out", tmp_path / "run")
    assert_one_line_error(result, 2, str(recipe))


def test_damaged_settings_of_a_run_are_bad_data(call, tmp_path):
    (tmp_path / "config.toml").write_text("[data")
    assert_one_line_error(call("evaluate", tmp_path), 3, str(tmp_path), "config.toml", "fit a new run")


@pytest.mark.parametrize("command", ["fit", "audit"])
def test_results_are_not_written_among_the_images(call, photos, command):
    before = sorted(photos.rglob("*"))
    for out in (photos, photos / "run", photos / NAMES[0] / "run"):
        result = call(command, photos, "--epochs", 1, "--out", out)
        assert_one_line_error(result, 2, f"--out {out}", "choose another --out")
    assert sorted(photos.rglob("*")) == before


@pytest.mark.slow
def test_results_of_a_run_are_not_written_among_its_images(call, photos, tmp_path):
    run = tmp_path / "run"
    assert call("fit", photos, *WORDS, "--out", run)[0] == 0
    before = sorted(photos.rglob("*"))
    for words in (["audit", run, "--out", photos], ["report", run, "--out", photos / NAMES[0] / "r.html"]):
        assert_one_line_error(call(*words), 2, f"--out {words[-1]}", "choose another --out")
    assert sorted(photos.rglob("*")) == before


def test_the_customary_run_folder_is_refused_inside_the_images_too(call, photos, monkeypatch):
    monkeypatch.chdir(photos)
    assert_one_line_error(call("fit", ".", *WORDS), 2, "--out runs/")
    assert not (photos / "runs").exists()


def test_a_run_is_not_measured_on_images_that_it_may_have_learned(call, photos, tmp_path):
    run = tmp_path / "run"
    assert call("fit", photos, "--method", "softmax", *WORDS, "--out", run)[0] == 0
    assert call("evaluate", run)[0] == 0
    picture = next((photos / NAMES[0]).iterdir())
    shutil.copy(picture, picture.with_name("zzz.png"))
    assert_one_line_error_at_the_end(call("evaluate", run), 3, str(run), "other images")
    picture.with_name("zzz.png").unlink()
    assert call("evaluate", run)[0] == 0


@pytest.mark.slow
def test_a_run_that_must_not_be_touched_can_be_audited_elsewhere(call, photos, tmp_path):
    run = tmp_path / "run"
    assert call("fit", photos, *WORDS, "--out", run)[0] == 0
    with open_run(run, read_config(run)):  # as a fit that is going on holds it
        code, _, error = call("audit", run, "--out", tmp_path / "audit")
    assert code == 0, error
    assert (tmp_path / "audit" / "audit.csv").is_file()


@pytest.mark.slow
def test_an_audit_that_cannot_be_written_fails_before_any_image_is_read(call, photos, tmp_path):
    run = tmp_path / "run"
    assert call("fit", photos, *WORDS, "--out", run)[0] == 0
    (tmp_path / "file").touch()
    assert_one_line_error(call("audit", run, "--out", tmp_path / "file"), 2, "cannot write to")


@pytest.mark.parametrize("known", ["", "a,,b", "a,b,"])
def test_an_empty_name_of_a_known_class_is_told_with_its_option(call, photos, tmp_path, known):
    result = call("fit", photos, *WORDS, "--known", known, "--out", tmp_path / "run")
    assert_one_line_error(result, 2, f"--known '{known}'")


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["fit", "--encodr", "small"], ["--encodr", "--encoder", "`pmal fit --help`"]),
        (["fit", "--epochs", 0], ["--epochs", "`pmal fit --help`"]),
        (["fit", "--out"], ["--out", "requires an argument"]),
        (["predict"], ["RUN", "`pmal predict --help`"]),
        (["fitt"], ["fitt", "'fit'", "`pmal --help`"]),
        (["data", "chek"], ["chek", "`pmal data --help`"]),
        (["--verson"], ["--verson", "`pmal --help`"]),
    ],
)
def test_wrong_words_of_the_command_line_are_one_line(call, words, parts):
    assert_one_line_error(call(*words), 2, *parts)


def test_an_empty_source_is_not_the_current_folder(call, photos, tmp_path, monkeypatch):
    monkeypatch.chdir(photos)
    for words in (WORDS, []):
        assert_one_line_error(call("fit", "", *words, "--out", tmp_path / "run"), 2, "SOURCE is empty")


def test_a_data_root_that_is_no_folder_is_told_beside_the_list(call, tmp_path):
    code, out, error = call("data", "list", "--data-root", tmp_path / "nowhere")
    assert (code, error.count("\n")) == (0, 1)
    assert f"data root {tmp_path / 'nowhere'}: no such folder" in error
    assert "mnist" in out


def assert_one_line_error_at_the_end(result, code, *parts):
    """After lines of progress."""
    *_, last = result[2].splitlines(keepends=True)
    assert_one_line_error((result[0], result[1], last), code, *parts)


def test_test_images_may_be_added_where_they_have_a_folder(call, photos, tmp_path):
    for part in ("train", "test"):
        shutil.copytree(photos, tmp_path / "parts" / part)
    run = tmp_path / "run"
    assert call("fit", tmp_path / "parts", "--method", "softmax", *WORDS, "--out", run)[0] == 0
    picture = next((tmp_path / "parts" / "test" / NAMES[0]).iterdir())
    shutil.copy(picture, picture.with_name("zzz.png"))
    assert call("evaluate", run)[0] == 0


def test_a_ctrl_c_before_the_command_begins_is_one_line(monkeypatch, capsys):
    genuine = builtins.__import__

    def interrupted(name, *words):
        if name == "pmal.cli":
            raise KeyboardInterrupt
        return genuine(name, *words)

    monkeypatch.setattr(builtins, "__import__", interrupted)
    with pytest.raises(SystemExit) as caught:
        main()
    assert_one_line_error((caught.value.code, "", capsys.readouterr().err), 130, "interrupted")


def test_a_ctrl_c_that_typer_takes_for_itself_is_the_same_line(monkeypatch, call):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(registry, "list_sources", interrupted)
    assert_one_line_error(call("data", "list"), 130, "interrupted: nothing was written")


def test_a_ctrl_c_while_libraries_are_imported_waits_for_them(monkeypatch, call):
    """Python's own handler would raise within them, and those of C++ abort the process."""
    seen = []
    monkeypatch.setattr(cli, "app", lambda: seen.append(signal.getsignal(signal.SIGINT)) or sys.exit(0))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    assert call("data", "list")[0] == 0
    [handler] = seen
    assert handler.__module__ == "pmal._runtime.signals"


def test_processes_that_decode_images_do_not_outlive_an_error(monkeypatch, call):
    killed = []
    worker = SimpleNamespace(kill=lambda: killed.append("worker"))
    monkeypatch.setattr(multiprocessing, "active_children", lambda: [worker])
    assert_one_line_error(call("data", "splits", "cifar1"), 2, "cifar10")
    assert killed == ["worker"]


def test_an_error_of_the_system_without_a_file_is_one_line(monkeypatch, call):
    def fail():
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(cli, "app", fail)
    assert call() == (1, "", "error: input/output: Input/output error\n")


@pytest.mark.usefixtures("call")  # which puts back how signals are handled
def test_a_terminal_that_lacks_a_letter_gets_a_question_mark(monkeypatch):
    shown = io.BytesIO()
    monkeypatch.setattr(cli, "app", lambda: print("größe") or sys.exit(0))
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="ascii"))
    with pytest.raises(SystemExit) as caught:
        main()
    assert (caught.value.code, shown.getvalue()) == (0, b"gr??e\n")


def test_the_version_is_told(call):
    from pmal import __version__

    assert call("--version")[:2] == (0, f"pmal {__version__}\n")


def test_a_benchmark_that_cannot_be_worked_on_fails_before_its_first_cell(call, tmp_path):
    (tmp_path / "work").touch()
    words = ["--methods", "softmax", "--epochs", 1, "--out", tmp_path / "ledger", "--work", tmp_path / "work"]
    assert_one_line_error(call("benchmark", *words), 2, f"cannot write to {tmp_path / 'work'}")


def test_what_is_no_run_is_told_with_what_is_one(call, tmp_path):
    assert_one_line_error(call("evaluate", tmp_path), 3, str(tmp_path), "`pmal fit`")


def test_a_reader_that_has_read_enough_is_no_error():
    reader, writer = os.pipe()
    os.close(reader)
    done = pmal_to(writer, "--version")
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full on this system")
def test_output_that_finds_no_room_is_one_line():
    done = pmal_to(os.open("/dev/full", os.O_WRONLY), "data", "list")
    assert (done.returncode, done.stderr) == (1, "error: standard output: No space left on device\n")


def pmal_to(output, *words):
    """The command with buffered output, as it usually is."""
    command = [sys.executable, "-m", "pmal", *words]
    try:
        return subprocess.run(command, stdout=output, stderr=subprocess.PIPE, text=True)
    finally:
        os.close(output)
