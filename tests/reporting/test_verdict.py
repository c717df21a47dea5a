import pytest

from pmal.reporting.verdict import judge, rejection_grade


def metrics(rejected=None, accepted=0.95, accuracy=0.95, threshold=True, auroc=0.8, **others):
    """Figures as metrics.json has them; others: the AUROC of further scores."""
    scores = {} if rejected is None else {"distance": auroc, **others}
    found = {
        "accuracy": {"value": accuracy},
        "scores": {name: {"auroc": {"value": value}} for name, value in scores.items()},
    }
    if threshold:
        found["decision"] = {"score": "distance", "accept": 0.95, "known_accepted": accepted}
        if rejected is not None:
            found["decision"]["unknown_rejected"] = rejected
    return found


def words(*given, **changes):
    found = judge(metrics(*given, **changes))
    return found.grade, found.finding.replace("\xa0", " "), found.advice.replace("\xa0", " ")


@pytest.mark.parametrize(
    ("rejected", "grade", "finding"),
    [
        (0.02, "chance", "2.0 % are rejected at this threshold, no better than chance (5.0 %)"),
        (0.09, "chance", "9.0 % are rejected at this threshold, barely better than chance (5.0 %)"),
        (0.4, "weak", "40.0 % are rejected at this threshold, better than chance (5.0 %), but most are"),
        (0.7, "fair", "70.0 % are rejected at this threshold, well above chance (5.0 %), but some are"),
        (0.95, "good", "95.0 % are rejected at this threshold, far above chance (5.0 %)."),
    ],
)
def test_what_is_rejected_is_graded_by_what_chance_rejects(rejected, grade, finding):
    found = words(rejected)
    assert found[0] == grade
    assert f"95.0 % of known images are named correctly; of the unknown images {finding}" in found[1]
    assert found[2].endswith(".")


def test_a_threshold_that_rejects_everything_is_no_better_than_chance():
    assert rejection_grade(1.0, chance=1.0) == "chance"
    assert rejection_grade(0.6, chance=0.5) == "weak"


def test_no_test_images():
    found = judge(None)
    assert found.grade == "untested"
    assert "no figures on test images" in found.finding
    assert "Measure it" in found.advice


def test_no_unknown_test_images():
    grade, finding, advice = words(None)
    assert grade == "closed"
    assert "5.0 % are rejected at this threshold. There were no unknown test images" in finding
    assert "--known" in advice


def test_no_threshold():
    grade, finding, advice = words(0.4, threshold=False)
    assert grade == "no threshold"
    assert "nothing is called unknown" in finding
    assert "data.held_out" in advice


@pytest.mark.parametrize("changes", [{}, {"threshold": False}, {"rejected": 0.99}])
def test_poor_accuracy_comes_first(changes):
    grade, finding, advice = words(accuracy=0.41, **changes)
    assert grade == "inaccurate"
    assert finding.startswith("Only 41.0 % of known images are named correctly; ")
    assert advice.startswith("Raise the accuracy first")


def test_a_threshold_that_keeps_no_promise():
    grade, finding, advice = words(0.9, accepted=0.8)
    assert grade == "strict"
    assert "90.0 % are rejected" in finding
    assert "Hold out more images" in advice


@pytest.mark.parametrize("rejected", [0.1, 0.4, 0.7])
def test_a_better_score_is_named_with_its_option(rejected):
    advice = words(rejected, neighbors=0.9, logit=0.85)[2]
    assert "neighbors" in advice
    assert "(AUROC 90.0 %, against 80.0 % of distance)" in advice
    assert "--set rejection.score=neighbors" in advice


def test_typicality_decides_beside_every_score_and_is_no_choice():
    assert "typicality" not in words(0.4, typicality=0.99)[2]


def test_a_score_that_separates_wants_another_threshold():
    assert "a lower --accept rejects more" in words(0.4, auroc=0.95)[2]
    assert "--accept" not in words(0.4, auroc=0.7)[2]
    assert "--accept" not in words(0.7, auroc=0.95)[2]


def test_a_score_that_metrics_do_not_have_leaves_the_general_advice():
    found = metrics(0.1)
    found["decision"]["score"] = "gone"
    assert judge(found).advice.startswith("Train longer")
