"""The page of groups in a browser: names are typed, a picture is left out, and a table comes back."""

import numpy as np
import pytest

from pmal._runtime.files import write_text
from pmal.data.decoding.decode import encode_png
from pmal.data.samples import Samples
from pmal.data.sources.folder import FileStore
from pmal.rejection.open_world.grouping import Group
from pmal.reporting.page.discovery.groups_page import groups_page, groups_sheet
from pmal.reporting.page.discovery.names_table import read_names
from pmal.reporting.page.discovery.pile import SIDE, SortedPile
from tests.support.browser import open_page

NAMES = ["=1,2.png", "</script><b>.png", 'c"d.png', "e.png", "gone.png", "left.png"]


@pytest.fixture
def pile(tmp_path):
    random = np.random.default_rng(0)
    for name in NAMES:
        if name != "gone.png":
            (tmp_path / name.replace("/", "_")).write_bytes(
                encode_png(random.integers(0, 256, (20, 30, 3), dtype=np.uint8))
            )
    files = [str(tmp_path / name.replace("/", "_")) for name in NAMES]
    files[0] = NAMES[0]  # a name that a spreadsheet would compute, and no file
    samples = Samples.whole(FileStore("", files), np.zeros(len(files), np.int64), ("",))
    groups = [Group(np.array([0, 1, 2]), 0.9), Group(np.array([3, 4]), 0.8)]
    return SortedPile(samples, groups, ("cat", "dog"))


def test_the_sheet_shows_what_can_be_shown(pile):
    sheet = groups_sheet(pile)
    assert sheet.height > 3 * SIDE
    assert isinstance(pile.picture(4), str)
    assert pile.picture(3).shape == (SIDE, SIDE, 3)


def test_names_typed_on_the_page_come_back_as_a_table(pile, tmp_path):
    write_text(tmp_path / "groups.html", groups_page(pile, "runs/pets"))
    with open_page(900, 700, accept_downloads=True) as page:
        page.goto((tmp_path / "groups.html").as_uri())
        assert page.locator("section h2").all_inner_texts() == [
            "Group 1 3 images, tightness 0.90",
            "Group 2 2 images, tightness 0.80",
            "In no group 1 images",
        ]
        assert page.locator("#new").is_disabled()
        page.get_by_label("Name of group 1").fill(" -fox, red ")
        page.get_by_label("Name of group 2").fill("dog")
        page.locator("section").nth(0).locator("button").nth(2).click()
        assert "pmal add-class runs/pets names.csv   # 2 images" in page.locator("#commands").inner_text()
        for button, name in (("#new", "names.csv"), ("#known", "corrections.csv")):
            with page.expect_download() as waiting:
                page.locator(button).click()
            assert waiting.value.suggested_filename == name
            waiting.value.save_as(tmp_path / name)
        assert not page.seen.errors
        assert [url for url in page.seen.requests if not url.startswith("file:")] == []
    files = [pile.samples.name(i) for i in range(6)]
    assert read_names(tmp_path / "names.csv") == {"-fox, red": files[:2]}
    assert read_names(tmp_path / "corrections.csv") == {"dog": files[3:5]}
