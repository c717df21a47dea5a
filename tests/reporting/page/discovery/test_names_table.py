"""The table that names are written into, and back."""

import numpy as np
import pytest

from pmal.data.samples import Samples
from pmal.data.sources.folder import FileStore
from pmal.errors import DataError
from pmal.rejection.open_world.grouping import Group
from pmal.reporting.page.discovery.names_table import names_table, read_names
from pmal.reporting.page.discovery.pile import SortedPile

FILES = ["a/1.png", '=sum("x").png', "c, d.png", "'e.png", "größe\n.png"]


def pile_of(files=FILES):
    samples = Samples.whole(FileStore("", files), np.zeros(len(files), np.int64), ("",))
    groups = [Group(np.array([2, 0]), 0.9), Group(np.array([1]), 0.5)]
    return SortedPile(samples, groups, ("cat",))


def written(tmp_path, text):
    path = tmp_path / "names.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_table_lists_groups_and_leftovers(tmp_path):
    lines = names_table(pile_of()).split("\n")
    assert lines[:4] == ["file,group,name", '"c, d.png",1,', "a/1.png,1,", '"\'=sum(""x"").png",2,']
    with pytest.raises(DataError, match="no names in it"):
        read_names(written(tmp_path, names_table(pile_of())))


def test_files_come_back_as_they_were(tmp_path):
    text = names_table(pile_of()).replace(",1,", ",1,fox").replace(",2,", ",2,=owl")
    found = read_names(written(tmp_path, text))
    assert found == {"fox": ["c, d.png", "a/1.png"], "=owl": ['=sum("x").png']}


def test_one_name_in_a_group_is_that_of_all_its_lines(tmp_path):
    text = "file,group,name\na,1,fox\nb,1,\nc,2,owl\nd,2,elk\ne,2,\nf,,\ng,,owl\n"
    assert read_names(written(tmp_path, text)) == {"fox": ["a", "b"], "owl": ["c", "g"], "elk": ["d"]}


def test_a_table_from_elsewhere_needs_two_columns(tmp_path):
    text = "\ufefffile,name,note\r\na,fox,x\r\na,fox,y\r\n"
    assert read_names(written(tmp_path, text)) == {"fox": ["a"]}


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "its first line has nothing"),
        ("path,name\na,b\n", "name the columns file and name"),
        ("file,name\na,fox\na,owl\n", "a is fox and owl"),
        ("file,name\n,fox\n", "line 2 has no file"),
    ],
)
def test_bad_tables_are_named(tmp_path, text, part):
    with pytest.raises(DataError, match=part):
        read_names(written(tmp_path, text))


def test_what_is_no_table_is_named(tmp_path):
    with pytest.raises(DataError, match="No such file"):
        read_names(tmp_path / "gone.csv")
    (tmp_path / "names.csv").write_bytes(b"file,name\n\xff\xfe,a")
    with pytest.raises(DataError, match="not text in UTF-8"):
        read_names(tmp_path / "names.csv")
