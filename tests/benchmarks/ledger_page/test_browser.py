"""The page of a ledger in a browser, opened from a file."""

import re

import pytest

from benchmarks.ledger_page.__main__ import write_ledger_page
from pmal.benchmark.cells.cell import make_cell
from tests.benchmark.ledgers import grid_records, made_up, mining_record, record
from tests.support.browser import open_page

pytestmark = pytest.mark.slow

OUTSIDE = """svg => {
    // Marks that lie beyond the drawing, to the left or to the right.
    const box = svg.getBoundingClientRect();
    return [...svg.querySelectorAll(".dot, .whisker, path.line")].filter((one) => {
        const {left, right} = one.getBoundingClientRect();
        return left < box.left - 1 || right > box.right + 1;
    }).length;
}"""


def records():
    """Three splits of two methods, two of a third; grids with a gap; three minings."""
    for split in (0, 2, 4):
        words = {"recipe": "strong", "epochs": 100}
        plain = {"probability": 0.8 + split / 50, "logit": 0.85}
        yield record(make_cell("softmax", "cifar10", "arpl", split, 0, **words), 0.9, **plain)
        pmal = {"probability": 0.84 + split / 40, "logit": 0.84, "distance": 0.8}
        yield record(make_cell("pmal", "cifar10", "arpl", split, 0, **words), 0.92, softmax=plain, **pmal)
        if split:
            yield record(make_cell("cpn", "cifar10", "arpl", split, 0, **words), 0.93, **plain)
    yield from (r for r in grid_records() if "ensemble.size=4" not in r["cell"]["settings"])
    yield from (mining_record(split) for split in (0, 2, 4))


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    return write_ledger_page(made_up(tmp_path_factory.mktemp("ledger"), *records()).folder).as_uri()


@pytest.fixture(scope="module")
def page(address):
    with open_page(1280, 900, reduced_motion="reduce") as page:
        page.goto(address)
        yield page


@pytest.fixture(autouse=True)
def nothing_went_wrong(request, address):
    yield
    if "page" in request.fixturenames:
        seen = request.getfixturevalue("page").seen
        assert (seen.errors, seen.requests) == ([], [address])


def test_every_figure_is_there_and_not_empty(page):
    kinds = [figure.get_attribute("data-draw") for figure in page.locator("figure[data-draw]").all()]
    assert kinds == ["dots", "lines", "lines", "dots", "dots", "dots", "dots"]
    # pmal and cpn, four measures each; cpn has its own score in both
    assert page.locator("#paired-0 .dots-row .dot").count() == 8
    assert page.locator("#paired-0 .whisker").count() == 4, "two splits have no interval"
    assert page.locator("#cost-passes .panel").count() == 2, "by its own score, and by the largest logit"
    assert page.locator("#cost-passes .panel").first.locator("path.line").count() == 4, (
        "three methods, the front"
    )
    assert page.locator("#curves-0 .panel").count() == 5
    assert page.locator("#curves-0 path.line").count() == 25, "four measures and the paper's"
    assert page.locator("#curves-0 path.line[stroke-dasharray]").count() == 5
    assert page.locator("#table3-0 .dots-row .dot").count() == 6 * 5
    assert page.locator("#table4-1 .dots-row .dot").count() == 6 * 6
    assert page.locator("#minings-apart-1 .dots-row .dot").count() == 6
    for line in page.locator("path.line, path.dot").all():
        assert "NaN" not in line.get_attribute("d")
    outside = [svg.evaluate(OUTSIDE) for svg in page.locator(".plot svg[role=img]").all()]
    assert len(outside) == 2 + 2 + 5 + 6 + 6 + 3 + 3
    assert not any(outside)


def test_a_value_that_was_not_run_is_a_gap(page):
    line = page.locator("#curves-0 .panel").nth(2).locator("path.line").first.get_attribute("d")
    assert len(re.findall("M", line)) == 2
    assert "Not run: U = 4." in page.locator("#curves-0 figcaption").inner_text()


def test_one_legend_hides_a_measure_in_all_panels(page):
    button = page.locator("#curves-0 .legend button", has_text="ACC")
    button.click()
    assert page.locator("#curves-0 path.line").count() == 20
    button.click()
    assert page.locator("#curves-0 path.line").count() == 25
    button = page.locator("#paired-0 .legend button", has_text="ACC")
    before = page.locator("#paired-0 svg[role=img]").first.bounding_box()["height"]
    button.click()
    assert page.locator("#paired-0 .dots-row .dot").count() == 6
    assert page.locator("#paired-0 svg[role=img]").first.bounding_box()["height"] < before
    button.click()


def test_dots_name_their_values(page):
    row = page.locator("#paired-0 svg[role=img]").nth(1)
    row.hover()
    tip = page.locator("#tip").inner_text()
    assert tip.startswith("pmal, 100 + 100\nminus softmax, 100; 3 splits")
    assert "AUROC logit: \N{MINUS SIGN}1" in tip
    assert "AUROC logit: \N{MINUS SIGN}1" in row.get_attribute("aria-label")
    page.mouse.move(1, 1)
    assert page.locator("#tip").is_hidden()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_has_no_sideways_scrolling(address, scheme):
    with open_page(390, 844, color_scheme=scheme, has_touch=True) as page:
        page.goto(address)
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        row = page.locator("#paired-0 .dots-row svg").first.bounding_box()
        assert row["width"] > 340, "the names stand above"
        assert page.seen.errors == []
