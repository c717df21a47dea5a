import errno
import json
import math
import os
import stat
from pathlib import Path

import pytest

from pmal._runtime.files import append_line, atomic_path, make_folder, read_events, read_json, write_json
from pmal.errors import DataError, UsageError


def test_a_failed_write_keeps_the_old_file(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"old": 1})

    def fail_half_way():
        with atomic_path(path) as temporary:
            temporary.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_half_way()
    assert read_json(path) == {"old": 1}
    assert [f.name for f in tmp_path.iterdir()] == ["a.json"]


def test_a_full_disk_is_told_with_the_file_that_found_no_room(tmp_path):
    def fill_up(path):
        with atomic_path(path) as temporary:
            temporary.write_text("half")
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left") as caught:
        fill_up(tmp_path / "a.onnx")
    assert caught.value.filename == str(tmp_path / "a.onnx")
    assert not list(tmp_path.iterdir())


def test_mode_follows_the_umask(tmp_path):
    write_json(tmp_path / "a.json", 1)
    expected = 0o666 & ~os.umask(os.umask(0o022) or 0o022)
    assert (tmp_path / "a.json").stat().st_mode & 0o777 == expected


def test_mode_follows_the_umask_whoever_wrote_the_file(tmp_path):
    with atomic_path(tmp_path / "a") as temporary:
        os.close(os.open(temporary, os.O_CREAT | os.O_WRONLY, 0o600))
    expected = 0o666 & ~os.umask(os.umask(0o022) or 0o022)
    assert (tmp_path / "a").stat().st_mode & 0o777 == expected


def test_a_file_is_on_disk_before_its_name_and_the_name_before_we_go_on(tmp_path, monkeypatch):
    happened = []
    fsync, replace = os.fsync, os.replace

    def note_fsync(descriptor):
        happened.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    def note_replace(*paths):
        happened.append("rename")
        replace(*paths)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "replace", note_replace)
    write_json(tmp_path / "a.json", 1)
    assert happened == ["file", "rename", "folder"]


@pytest.mark.parametrize(
    ("code", "named"), [(errno.EACCES, None), (errno.ENOSPC, "another file"), (errno.EACCES, "another file")]
)
def test_other_errors_keep_the_name_that_they_have(tmp_path, code, named):
    def fail():
        with atomic_path(tmp_path / "a"):
            raise OSError(code, "reason", named)

    with pytest.raises(OSError, match="reason") as caught:
        fail()
    assert caught.value.filename == named


def test_json_is_readable_for_people_and_for_all_programs(tmp_path):
    write_json(tmp_path / "a.json", {"name": "größe"})
    assert "größe" in (tmp_path / "a.json").read_text(encoding="utf-8")
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "b.json", math.nan)
    assert [f.name for f in tmp_path.iterdir()] == ["a.json"]


def test_json_that_is_not_json_names_the_file(tmp_path):
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(DataError, match=r"a\.json: not readable as JSON"):
        read_json(tmp_path / "a.json")
    with pytest.raises(DataError, match=r"b\.json: no such file"):
        read_json(tmp_path / "b.json")
    (tmp_path / "c.json").write_text("[" * 200_000)
    (tmp_path / "d.json").mkdir()
    for name in ("c", "d"):
        with pytest.raises(DataError, match=rf"{name}\.json: not readable as JSON"):
            read_json(tmp_path / f"{name}.json")


def test_a_line_cut_off_by_a_dying_process_stays_its_own_line(tmp_path):
    log = tmp_path / "log.jsonl"
    append_line(log, json.dumps({"a": 1}))
    with open(log, "a") as file:
        file.write('{"b":')
    append_line(log, json.dumps({"c": 3}))
    assert log.read_text().splitlines() == ['{"a": 1}', '{"b":', '{"c": 3}']
    assert read_events(log) == [{"a": 1}, {"c": 3}]
    assert read_events(tmp_path / "no such log") == []


def test_what_is_no_event_is_left_out(tmp_path):
    (tmp_path / "log.jsonl").write_bytes(b'\xff\xfe\n3\n[]\n{"a": 1}\n')
    assert read_events(tmp_path / "log.jsonl") == [{"a": 1}]


def test_unwritable_folder_is_a_usage_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"cannot write to .*file/run .*choose another folder"):
        make_folder(tmp_path / "file" / "run")


def test_a_folder_is_tried_and_left_empty(tmp_path, monkeypatch):
    assert not list(make_folder(tmp_path / "new").iterdir())

    def refuse(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "touch", refuse)
    with pytest.raises(UsageError, match=r"cannot write to .*Permission denied"):
        make_folder(tmp_path / "new")
