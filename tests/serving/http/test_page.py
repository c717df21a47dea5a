"""The page in a browser: what people drop, see and move."""

import dataclasses

import pytest

from pmal.rejection.model import Rule
from pmal.reporting.page.discovery.names_table import read_names
from tests.serving.digits_model import KNOWN, make_digits_model, read_digits
from tests.serving.http_service import png, predict, running_model, serve_model
from tests.serving.page_browser import drop, open_page
from tests.serving.tiny_model import make_model, pictures_of
from tests.support.browser import keep_browser

pytestmark = pytest.mark.slow

HOSTILE = ("<script>alert(1)</script>", "<img src=x onerror=alert(2)>", "3' \"&amp;")


@pytest.fixture(scope="module", autouse=True)
def one_browser():
    with keep_browser():
        yield


@pytest.fixture(scope="module")
def digits():
    """The port of a service that knows four digits, and one file that it knows and one that it does not."""
    test = read_digits("test", 12)
    with running_model(serve_model(make_digits_model(), "digits")) as (_, port):
        known = unknown = None
        for label, file in zip(test.labels, test.files, strict=True):
            (answer,) = predict(port, file).body["answers"]
            if label in KNOWN and answer["class"] == str(label) and not known:
                known = (file, str(label))
            if label not in KNOWN and answer["class"] == "unknown" and not unknown:
                unknown = (file, answer["nearest"])
        yield port, known, unknown


def text(page, name):
    return page.inner_text(f"#{name}")


def three_digits(value):
    """As the page writes numbers."""
    return f"{float(f'{value:.3g}'):g}"


def wait_for_answer(page, class_name):
    page.wait_for_function(
        "name => document.getElementById('verdict-class').textContent === name", arg=class_name
    )


def wait_for_score(page, name):
    """Until the page goes by another score; what it shows is asked about again from then on."""
    page.wait_for_function(
        "title => document.getElementById('scale-title').textContent.startsWith(title)", arg=f"Score ({name})"
    )


def wait_for_pictures(page):
    page.wait_for_function(
        "() => [...document.images].every((i) => i.hidden || !i.src || i.naturalWidth > 0)"
    )


def test_known_and_unknown_digits_and_the_slider(digits):
    port, (known, name), (unknown, nearest) = digits
    with open_page(f"http://127.0.0.1:{port}/") as page:
        page.wait_for_selector("html[data-ready]")
        drop(page, ("four.png", known))
        wait_for_answer(page, name)
        assert text(page, "verdict-kind").lower() == "known"
        assert f"Known: class {name}." in page.text_content("#spoken")
        assert page.locator("#prototypes li").count() == 5
        wait_for_pictures(page)
        weights = [float(w.split()[0]) for w in page.locator("#prototypes .weight").all_inner_texts()]
        assert weights == sorted(weights, reverse=True)
        assert 99 < sum(weights) < 101

        drop(page, ("other.png", unknown))
        wait_for_answer(page, "unknown")
        assert nearest in text(page, "verdict-why")
        assert "1 known, 1 unknown" in text(page, "tally")
        wait_for_pictures(page)

        asked = []
        page.on("request", lambda request: asked.append(request.url))
        page.focus("#rate")
        page.keyboard.press("End")  # so much that everything is accepted
        wait_for_answer(page, nearest)
        assert "2 known, 0 unknown" in text(page, "tally")
        page.keyboard.press("Home")
        wait_for_answer(page, "unknown")
        page.click("#rate-reset")
        assert text(page, "rate-value") == "95 %"
        assert not [url for url in asked if not url.startswith("blob:")], "the slider asked the service"


def test_the_slider_decides_as_the_service_would(digits):
    port, _, (unknown, _) = digits
    (answer,) = predict(port, unknown).body["answers"]
    with open_page(f"http://127.0.0.1:{port}/") as page:
        page.wait_for_selector("html[data-ready]")
        drop(page, ("a.png", unknown))
        wait_for_answer(page, answer["class"])
        found = page.evaluate(
            """async () => {
                const {acceptance: {rates, thresholds, notes}} = await (await fetch("v1/model")).json();
                const slider = document.getElementById("rate");
                return rates.map((rate, i) => {
                    slider.value = i;
                    slider.dispatchEvent(new Event("input"));
                    const [shown, note] = ["verdict", "rate-note"].map((id) => document.getElementById(id));
                    return [thresholds[0][i], shown.className, note.textContent, notes[i]];
                });
            }"""
        )
        for limit, shown, note, promise in found:
            assert ("known" in shown) == (answer["score"] <= float(limit))
            assert limit == "inf" or note.endswith(f"{promise[1:]}.")
        assert {"known" in shown for _, shown, _, _ in found} == {True, False}
        assert "% (90 % range)" in found[0][2]


def test_the_score_that_decides_can_be_chosen(digits):
    port, (known, _), (unknown, _) = digits
    with open_page(f"http://127.0.0.1:{port}/") as page:
        page.wait_for_selector("html[data-ready]")
        assert not page.is_visible("#score-block"), "nothing was decided yet"
        own = page.input_value("#score")
        names = page.evaluate("async () => (await (await fetch('v1/model')).json()).scores")
        assert page.locator("#score option").all_inner_texts() == [
            f"{score} (stored)" if score == own else score for score in names
        ]
        drop(page, ("a.png", unknown), ("b.png", known))
        page.wait_for_function("() => document.querySelectorAll('#strip .is-waiting').length === 0")
        for score in [*(score for score in names if score != own), own]:
            page.select_option("#score", score)
            wait_for_score(page, score)
            page.wait_for_function("() => document.querySelectorAll('#strip .is-waiting').length === 0")
            (answer,) = predict(port, unknown, query=f"?score={score}").body["answers"]
            (other,) = predict(port, known, query=f"?score={score}").body["answers"]
            assert text(page, "verdict-class") == answer["class"]
            spoken = page.text_content("#spoken")
            assert f"threshold {three_digits(answer['threshold'])}." in spoken
            assert f"p-value {three_digits(answer['p_value'])}:" in text(page, "verdict-p")
            assert text(page, "verdict-p") in spoken
            count = [answer["known"], other["known"]].count(True)
            assert f"{count} known, {2 - count} unknown" in text(page, "tally")


def test_an_answer_that_comes_after_another_score_was_chosen_is_asked_for_again(digits):
    port, (known, _), _ = digits
    held = []
    with open_page(f"http://127.0.0.1:{port}/") as page:
        page.wait_for_selector("html[data-ready]")
        page.route("**/v1/predict*", lambda route: route.continue_() if held else held.append(route))
        with page.expect_request("**/v1/predict*"):
            drop(page, ("a.png", known))
        page.select_option("#score", "logit")
        wait_for_score(page, "logit")
        held[0].continue_()
        page.wait_for_selector("#result:not([hidden])")
        (answer,) = predict(port, known, query="?score=logit").body["answers"]
        assert f"threshold {three_digits(answer['threshold'])}." in page.text_content("#spoken")
        assert f"p-value {three_digits(answer['p_value'])}:" in text(page, "verdict-p")


def test_a_chosen_score_keeps_the_rate_that_was_set(digits):
    port, (known, name), _ = digits
    with open_page(f"http://127.0.0.1:{port}/") as page:
        page.wait_for_selector("html[data-ready]")
        drop(page, ("a.png", known))
        wait_for_answer(page, name)
        page.focus("#rate")
        page.keyboard.press("Home")
        page.select_option("#score", "logit")
        wait_for_score(page, "logit")
        page.wait_for_selector("#result:not(.waiting)")
        assert text(page, "rate-value") == "50 %"
        limit = page.evaluate(
            "async () => (await (await fetch('v1/model?score=logit')).json()).acceptance.thresholds[0][0]"
        )
        assert f"threshold {three_digits(limit)}." in page.text_content("#spoken")
        page.click("#rate-reset")
        assert text(page, "rate-value") == "95 %"


def test_prototypes_chosen_files_and_the_camera(digits):
    port, (known, name), _ = digits
    with open_page(f"http://127.0.0.1:{port}/") as page:
        page.wait_for_selector("html[data-ready]")
        page.click(".chip >> nth=1")  # a prototype of a class is recognized as that class
        wait_for_answer(page, str(KNOWN[1]))
        page.set_input_files("#file", [{"name": "a.png", "mimeType": "image/png", "buffer": known}])
        wait_for_answer(page, name)
        page.click("#camera")  # the browser's own picture of a camera
        page.wait_for_function("() => document.getElementById('video').videoWidth > 0")
        page.click("#shoot")
        page.wait_for_function("() => document.querySelectorAll('#strip li').length === 3")
        page.wait_for_selector("#result:not([hidden])")


def test_names_are_text_and_nothing_else():
    model = dataclasses.replace(make_model(Rule("distance", 0.8, per_class=True)), class_names=HOSTILE)
    gallery = tuple(
        tuple(dataclasses.replace(p, file=f"<b>{p.id}<b>") for p in members) for members in model.gallery
    )
    with (
        running_model(serve_model(dataclasses.replace(model, gallery=gallery), "<i>run</i>")) as (_, port),
        open_page(f"http://127.0.0.1:{port}/", 390, 844, "dark") as page,
    ):
        page.wait_for_selector("html[data-ready]")
        drop(page, *((f"<u>{kind}</u>.png", png(kind)) for kind in range(3)))
        wait_for_answer(page, HOSTILE[0])
        assert text(page, "image-name") == "<u>0</u>.png"
        assert "<i>run</i>" in text(page, "model-line")
        assert "<b>" in page.inner_text("#prototypes")
        page.wait_for_function("() => document.querySelectorAll('#strip .is-known').length === 3")
        tags = "main script, main [onerror], main b, main i, main u"
        assert page.locator(tags).count() == 0
        wide = page.evaluate("document.documentElement.scrollWidth > innerWidth")
        assert not wide, "the page is wider than the phone"


def test_another_model_takes_over():
    first, second = serve_model(make_model(), "first"), make_model(Rule("logit"), prototypes=False)
    with (
        running_model(first) as (service, port),
        open_page(f"http://127.0.0.1:{port}/") as page,
    ):
        page.wait_for_selector("html[data-ready]")
        drop(page, ("a.png", png(0)), ("b.png", png(1)))
        page.wait_for_function("() => document.querySelectorAll('#strip .is-known').length === 2")
        service.served = serve_model(second, "second", "e" * 64)
        drop(page, ("c.png", png(2)))
        page.wait_for_function("() => document.getElementById('model-line').textContent.startsWith('second')")
        page.wait_for_selector("#no-prototypes:not([hidden])")
        assert page.locator("#strip li").count() == 1, "answers of the first model are still shown"


@pytest.mark.parametrize(
    "model",
    [
        make_model(Rule("logit"), prototypes=False),
        make_model(Rule("logit", threshold=0.0), prototypes=False, calibrated=False),
        make_model(Rule("distance", threshold=1e9)),
    ],
    ids=["softmax", "without calibration", "set by hand"],
)
def test_other_models(model):
    served = serve_model(model)
    with running_model(served) as (_, port), open_page(f"http://127.0.0.1:{port}/") as page:
        page.wait_for_selector("html[data-ready]")
        (expected,) = served.answer([(pictures_of(0, 1, 7)[0].numpy(), "a", 1)])
        drop(page, ("a.png", png(0)))
        wait_for_answer(page, expected["class"])
        assert page.is_visible("#rate-block") == (model.calibration is not None)
        assert page.is_visible("#score-block") == (model.calibration is not None)
        assert page.is_visible("#no-prototypes") == (model.reference is None)
        if model.rule.threshold is not None and model.calibration is not None:
            assert text(page, "rate-value") == "own threshold"
            page.focus("#rate")
            page.keyboard.press("Home")
            assert text(page, "rate-value") == "50 %"


def test_the_scale_of_ten_thousand_classes_and_of_no_number_at_all(digits):
    port, _, _ = digits
    ask = """async ([thresholds, classes, score]) => {
        const { makeScale } = await import("./scale.js");
        const rows = Array.from({ length: classes }, () => thresholds);
        return makeScale({ acceptance: { thresholds: rows }, classes: [] }, score)(0.5);
    }"""
    with open_page(f"http://127.0.0.1:{port}/") as page:
        assert page.evaluate(ask, [[0.0, 1.0] * 26, 10_000, 0.5]) == 0.5
        assert page.evaluate(ask, [["inf"], 1, 0.5]) == 0.5
        assert 0 <= page.evaluate(ask, [["inf"], 0, float("inf")]) <= 1


def test_bad_files_are_told(digits):
    port, _, _ = digits
    # The browser itself logs every answer of 400 and more.
    with open_page(f"http://127.0.0.1:{port}/", allowed="status of 422") as page:
        page.wait_for_selector("html[data-ready]")
        drop(page, ("notes.txt", b"hello"))
        page.wait_for_selector("#problem:not([hidden])")
        assert text(page, "problem") == "notes.txt: not a JPEG, PNG, WebP, HEIC, BMP, GIF, TIFF or PPM image"


def test_the_api_page_needs_no_other_site(digits):
    port, _, _ = digits
    with open_page(f"http://127.0.0.1:{port}/docs") as page:
        page.wait_for_selector(".path")
        assert "multipart/form-data" in page.inner_text("#docs")


def test_an_answer_of_a_proxy_is_told_by_its_status(digits):
    port, _, _ = digits
    with open_page(f"http://127.0.0.1:{port}/", allowed="status of 502") as page:
        page.wait_for_selector("html[data-ready]")
        page.route("**/v1/predict*", lambda route: route.fulfill(status=502, body="<html>Bad Gateway"))
        drop(page, ("a.png", png(0)))
        page.wait_for_selector("#problem:not([hidden])")
        assert text(page, "problem") == "a.png: the service answered 502"


def test_what_came_in_is_watched_and_right_answers_become_a_table():
    """Noise alone: the alarm is on the page, and the table is one that `pmal update` reads."""
    said = "document.getElementById('traffic-words').textContent"
    with running_model() as (_, port), open_page(f"http://127.0.0.1:{port}/") as page:
        page.wait_for_selector("html[data-ready]")
        page.wait_for_function(f"() => {said} === 'no answers'")
        drop(page, *((f"=noise, {i}.png", png(9, seed=i)) for i in range(25)))
        page.wait_for_function("() => document.querySelectorAll('#rate-chart rect').length > 10")
        page.wait_for_selector("#alarm:not([hidden])")
        assert "ALARM: more images look unknown" in text(page, "alarm")
        assert "25 of 25 rejected (100.0 %; 4.9 % of known images are)" in text(page, "traffic-words")
        heights = [bar.bounding_box()["height"] for bar in page.locator("#rate-chart rect").all()]
        assert min(heights) > 0.9 * page.locator("#rate-chart").bounding_box()["height"], "all are rejected"
        assert page.locator("#evidence-chart polyline").count() == 2
        page.select_option("#truth", "unknown")
        page.locator("#strip button").nth(1).click()
        assert page.input_value("#truth") == ""
        page.select_option("#truth", "a, b\nc")
        assert "pmal update tiny corrections.csv" in text(page, "corrections-text")
        with page.expect_download() as download:
            page.click("#corrections-save")
        table = read_names(download.value.path())
    assert table == {"unknown": ["=noise, 0.png"], "a, b\nc": ["=noise, 1.png"]}
