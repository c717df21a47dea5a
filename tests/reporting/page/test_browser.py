"""The report in a browser, opened from a file, of a run whose classes have the most harmful names."""

import re

import pytest

from pmal.reporting.page.run_report import write_report
from tests.support.browser import open_page
from tests.support.report_runs import NAMES, UNKNOWN_NAME, fit_photos

pytestmark = pytest.mark.slow

INK = """canvas => {
    const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    let sum = 0;
    for (let i = 3; i < data.length; i += 4) sum += data[i] > 0;
    return sum;
}"""
NEAREST = """() => {
    // Where the first point of the first panel is drawn, found by asking as the pointer does.
    const canvas = document.querySelector("canvas"), box = canvas.getBoundingClientRect();
    for (let y = 10; y < box.height; y += 8) for (let x = 10; x < box.width; x += 8) {
        canvas.dispatchEvent(new PointerEvent("pointermove", {clientX: box.left + x, clientY: box.top + y}));
        if (!document.getElementById("tip").hidden) return [box.left + x, box.top + y];
    }
    return null;
}"""


PALE = """() => {
    // Words that do not stand out from their ground by 4.5 to 1, as readers with weak eyes need it.
    const pen = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
    const paint = (...colors) => {  // each over the one before
        pen.fillStyle = "#808080";
        for (const color of colors) { pen.fillStyle = color; pen.fillRect(0, 0, 1, 1); }
        return [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3);
    };
    const linear = (v) => (v <= 10 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
    const light = (rgb) => rgb.map(linear)
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0.05);
    const found = [];
    for (const node of document.querySelectorAll("body *:not(svg *)")) {
        const words = [...node.childNodes].filter((n) => n.nodeType === 3);
        const text = words.map((n) => n.textContent.trim()).join("");
        if (!text || text === "·" || !node.getBoundingClientRect().width) continue;
        const grounds = [];
        for (let up = node; up; up = up.parentElement) grounds.unshift(getComputedStyle(up).backgroundColor);
        const [a, b] = [light(paint(...grounds)), light(paint(...grounds, getComputedStyle(node).color))];
        if (Math.max(a, b) / Math.min(a, b) < 4.5) found.push(`${node.className}: ${text}`);
    }
    return found;
}"""


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    # It errs, so that its mistakes are shown, too.
    run = fit_photos(tmp_path_factory.mktemp("report"), 20, rejection={"accept": 0.8})
    return write_report(run).as_uri()


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
        assert seen.errors == []
        assert seen.requests == [address]


def test_every_figure_is_there_and_not_empty(page):
    figures = page.locator("figure[data-draw]").all()
    assert [figure.get_attribute("data-draw") for figure in figures] == [
        "scatter",
        "scores",
        "robustness",
        "lines",
    ]
    assert [canvas.evaluate(INK) > 100 for canvas in page.locator("canvas").all()] == [True, True]
    assert page.locator("#score-plots path.area:not(.key)").count() == 2
    assert page.locator("#score-plots path.line").count() == 4, "ROC and OSCR, of pmal and of softmax"
    assert page.locator("#score-plots line.threshold").count() == 1
    assert page.locator("#robustness-plot rect.bar-r").count() > 2
    assert page.locator("#robustness-plot .strip .tile").count() > 2
    assert page.locator("#curves path.line").count() == 6, "three trainings, loss and rate"
    for line in page.locator("path.line, path.area:not(.key)").all():
        assert len(line.get_attribute("d")) > 20
        assert "NaN" not in line.get_attribute("d")
    pictures = page.locator(".gallery .tile").all()
    mistakes = page.locator("#mistakes .gallery .tile").count()
    assert 0 < mistakes <= 3 * 24
    assert len(pictures) == 3 * (3 + 10) + mistakes
    assert all(picture.bounding_box()["width"] > 10 for picture in pictures)


def test_pictures_have_words(page):
    words = page.locator(".tile").evaluate_all("tiles => tiles.map(tile => tile.getAttribute('aria-label'))")
    assert len(words) > 39
    assert all(words)
    assert page.locator("canvas[aria-label]").count() == 2
    assert page.locator("figure .plot:not([aria-label])").count() == 0


def test_names_are_text(page):
    assert page.evaluate("document.querySelectorAll('script:not([type])').length") == 1
    assert page.locator("main b:not([style]), main i:not([style])").count() == 0
    headings = page.locator("#prototypes .gallery h3").all_inner_texts()
    assert [heading.partition(" 3 prototypes")[0] for heading in headings] == sorted(NAMES, key=NAMES.index)
    legend = page.locator("#embedding-plot .legend button").all_inner_texts()
    assert legend == [*NAMES, "unknown", "prototypes"]
    assert UNKNOWN_NAME in page.locator(".matrix").inner_text()
    shown = page.locator("#mistakes .line").all_inner_texts()
    assert f"unknown: {UNKNOWN_NAME}" in shown
    assert {f"→ {name}" for name in NAMES} & {*shown}


def test_hovering_shows_the_image(page):
    page.locator("canvas").first.scroll_into_view_if_needed()
    x, y = page.evaluate(NEAREST)
    page.mouse.move(1, 1)
    page.mouse.move(x, y)
    tip = page.locator("#tip")
    assert tip.is_visible()
    assert any(name in tip.inner_text() for name in [*NAMES, UNKNOWN_NAME])
    assert tip.locator(".tile").bounding_box()["width"] == 84
    sheet = tip.locator(".tile").evaluate("tile => getComputedStyle(tile).backgroundImage")
    assert sheet.startswith('url("data:image/')
    page.mouse.move(1, 1)
    assert tip.is_hidden()


def test_the_legend_hides_a_class_and_brings_it_back(page):
    canvas, button = page.locator("canvas").first, page.locator("#embedding-plot .legend button").nth(0)
    before = canvas.evaluate(INK)
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert canvas.evaluate(INK) < before
    button.click()
    assert canvas.evaluate(INK) == before


def test_another_score_and_another_class_are_drawn(page):
    threshold = page.locator("#score-plots line.threshold + text")
    before = threshold.text_content()
    page.get_by_role("button", name="energy", exact=True).click()
    assert threshold.text_content() != before
    assert "exponentials" in page.locator("#score-plots").inner_text()
    bars = "bars => bars.map(bar => bar.getAttribute('height'))"
    heights = page.locator("rect.bar-r").evaluate_all(bars)
    page.locator(".ridges button").nth(1).click()
    assert page.locator("rect.bar-r").evaluate_all(bars) != heights


def test_the_slider_moves_the_threshold_and_says_the_shares(page):
    page.get_by_role("button", name="combined", exact=True).click()
    panel = page.locator("#score-plots .panel").first
    slider, line = panel.get_by_role("slider"), panel.locator("line.threshold")
    stored = [line.get_attribute("x1"), slider.get_attribute("aria-valuetext")]
    data = page.locator("#score-plots script").evaluate("node => JSON.parse(node.textContent)")
    accepted = next(score["accepted"] for score in data["scores"] if score["name"] == "combined")
    slider.focus()
    for key, i in (("ArrowRight", accepted["start"] + 1), ("End", len(accepted["at"]) - 1), ("Home", 0)):
        page.keyboard.press(key)
        for kind in ("known", "unknown"):
            share = round(100 * accepted[kind][i], 1)
            words = f"{kind}: {share:.1f} % accepted, {100 - share:.1f} % rejected"
            assert words in panel.locator(".slider").inner_text()
            assert words.replace(":", "") in slider.get_attribute("aria-valuetext")
    assert float(line.get_attribute("x1")) < float(stored[0])
    panel.get_by_role("button", name="back to the stored threshold").click()
    assert [line.get_attribute("x1"), slider.get_attribute("aria-valuetext")] == stored
    assert panel.get_by_role("button").count() == 0


def test_points_are_reached_by_keyboard_and_spoken(page):
    texts = page.locator("#embedding-plot script").evaluate("node => JSON.parse(node.textContent).text")
    point, spoken, tip = page.locator(".point").first, page.locator("#spoken"), page.locator("#tip")
    page.locator("#embedding-plot .legend button").last.focus()
    page.keyboard.press("Tab")
    assert point.evaluate("node => node === document.activeElement")
    assert spoken.text_content() == ", ".join(texts[0])
    before = point.bounding_box()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    # The class, the answer, score and p-value, and the file; here as there.
    assert spoken.text_content() in [", ".join(text) for text in texts[1:]]
    assert point.get_attribute("aria-label") == spoken.text_content()
    assert ", p 0." in spoken.text_content()
    assert point.bounding_box()["x"] > before["x"]
    outline = point.evaluate("node => [getComputedStyle(node).opacity, getComputedStyle(node).outlineWidth]")
    assert outline == ["1", "3px"]
    assert tip.is_visible()
    page.keyboard.press("Escape")
    assert tip.is_hidden()
    page.keyboard.press("Home")
    seen = [spoken.text_content()]
    for _ in texts[1:]:
        page.keyboard.press("PageDown")
        seen.append(spoken.text_content())
    assert seen == [", ".join(text) for text in texts], "not every point can be reached"
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert tip.is_hidden()


def test_arrows_go_to_the_nearest_point_on_that_side(page):
    found = page.evaluate(
        """() => {
            const view = {data: {kind: [0, 0, 0, 0], label: [0, 0, 1, 0]}, off: new Set([1]), current: 0,
                at: (i) => [[50, 50], [60, 90], [55, 50], [70, 52]][i]};
            return ["ArrowRight", "ArrowDown", "ArrowLeft", "End", "x"].map((k) => pmal.nextPoint(view, k));
        }"""
    )
    assert found == [3, 1, 0, 3, None], "the hidden one is passed over, and none lies to the left"


def test_unknown_has_a_shape_of_its_own(page):
    shapes = page.evaluate(
        """() => {
            const data = JSON.parse(document.querySelector("#embedding-plot script").textContent);
            const many = {...data, classes: Array.from({length: 40}, String)};
            return pmal.scatterEntries(many).map((entry) => [entry.name, entry.shape]);
        }"""
    )
    assert [name for name, shape in shapes if shape == "cross"] == ["unknown"]
    areas = page.locator("#score-plots path.area:not(.key)")
    assert [areas.nth(i).get_attribute("d").count("M") > 1 for i in range(2)] == [False, True], "hatched"
    assert areas.nth(1).evaluate("node => getComputedStyle(node).fill") == "none"


def test_without_scripts_the_stored_threshold_is_drawn_and_told(address):
    with open_page(800, 900, java_script_enabled=False) as page:
        page.goto(address)
        still = page.locator("#score-plots svg.still")
        assert still.bounding_box()["width"] > 300
        assert still.locator("path.area").count() == 2
        assert still.locator("line.threshold").count() == 1
        assert "% are accepted" in page.locator("#score-plots").inner_text()
        assert page.locator(".verdict").is_visible()


def test_lines_name_their_values(page):
    page.locator("#curves svg[role=img]").first.hover()
    assert re.search(r"^epoch [12]classifier 0: [\d.]+", page.locator("#tip").text_content())
    page.mouse.move(1, 1)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_has_no_sideways_scrolling(address, scheme):
    with open_page(375, 812, color_scheme=scheme, has_touch=True) as page:
        page.goto(address)
        assert page.evaluate("document.documentElement.scrollWidth") == 375
        assert page.locator("canvas").first.bounding_box()["width"] > 300
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 21, 24)"
        assert dark == (scheme == "dark")
        assert page.seen.errors == []
        page.emulate_media(media="print")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert not page.locator("nav").is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_words_stand_out_from_their_ground(address, scheme):
    with open_page(1280, 900, color_scheme=scheme) as page:
        page.goto(address)
        assert page.evaluate(PALE) == []
