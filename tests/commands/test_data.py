"""`pmal data` as a user meets it, on data that come with the package."""

import dataclasses
import json

import pytest

from pmal.data.sources import readers as registry
from pmal.data.sources.readers import open_source
from tests.support.command_line import assert_one_line_error


@pytest.fixture
def few(monkeypatch):
    """Every source is ten images of the sample; parts of it can be changed."""
    whole = open_source("sample", None)
    source = dataclasses.replace(whole, train=whole.train.at(range(8)), test=whole.test.at(range(2)))

    def replace(**parts):
        monkeypatch.setattr(registry, "open_source", lambda *_: dataclasses.replace(source, **parts))
        return source

    replace()
    return replace


def converted(call, *words):
    code, out, error = call("data", "convert", "sample", *words, "--json")
    assert code == 0, error
    return json.loads(out)["images"], error


def test_a_file_is_replaced_only_on_request(tmp_path, call, few):
    path = tmp_path / "a.parquet"
    path.write_bytes(b"mine")
    assert_one_line_error(call("data", "convert", "sample", path), 2, "a.parquet exists", "--force")
    assert path.read_bytes() == b"mine"
    assert converted(call, path, "--force") == ({"train": 8, "test": 2}, "")
    assert path.read_bytes()[:4] == b"PAR1"


def test_the_name_of_a_parquet_file_says_so(tmp_path, call):
    assert_one_line_error(call("data", "convert", "sample", tmp_path / "a.csv"), 2, "must end in .parquet")
    assert not list(tmp_path.iterdir())


def test_what_a_file_cannot_hold_is_told(tmp_path, call, few):
    source = few(test=None)
    assert converted(call, tmp_path / "a.parquet") == ({"train": 8}, "")
    few(foreign=source.test)
    images, warning = converted(call, tmp_path / "b.parquet")
    assert images == {"train": 8, "test": 2}
    assert warning == "warning: the unknown images of sample belong to another set and are left out\n"


def test_splits_of_the_customary_family_are_shown_as_a_list(call):
    code, out, _ = call("data", "splits", "cifar10")
    assert (code, out.splitlines()[0]) == (0, "arpl/0  known 0,6,4,9,1,7  unknown 2,3,5,8")
    assert call("data", "splits", "cifar10", "--family", "neal")[1].startswith("neal/0  known 0,1,2,4,5,9  ")
    assert "  unknown (of the other set) 30,25," in call("data", "splits", "cifar+10")[1]
    [line] = call("data", "splits", "imagenet-lt")[1].splitlines()
    assert line.startswith("lt/0  known 0,1,")
    assert line.endswith("  unknown (of the other set) all")


def test_data_that_are_not_here_are_listed_as_such(tmp_path, call):
    found = json.loads(call("data", "list", "--data-root", tmp_path, "--json")[1])
    places = {entry["name"]: entry["found"] for entry in found}
    assert places["cifar10"] is None
    assert places["sample"]
    [line] = [
        line for line in call("data", "list", "--data-root", tmp_path)[1].splitlines() if "cifar10 " in line
    ]
    assert "not found: " in line
