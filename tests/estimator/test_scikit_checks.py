"""scikit-learn's own checks of a classifier and a transformer, on embeddings."""

import inspect

import pytest
from sklearn.utils import estimator_checks

from pmal import OpenSetClassifier

SMALL = OpenSetClassifier(
    encoder="precomputed",
    epochs=1,
    held_out=0.1,
    accept=0.999,  # the checks count a rejected sample as a wrong one
    prototypes_per_class=2,
    settings={"encoder": {"options": {"width": 8}}},
    device="cpu",
    unknown_label=-9,  # the checks have a class -1
)
KNOWN_NESS = "decision_function is one number for how known a sample is, not a score for each class"
EXPECTED = {"check_classifiers_classes": KNOWN_NESS, "check_classifiers_train": KNOWN_NESS}
pytestmark = pytest.mark.filterwarnings("ignore")  # of thresholds that hardly any sample holds up

OPTIONS = inspect.signature(estimator_checks.parametrize_with_checks).parameters
if "expected_failed_checks" not in OPTIONS:
    pytest.skip("scikit-learn before 1.6 has other checks", allow_module_level=True)


@estimator_checks.parametrize_with_checks([SMALL], expected_failed_checks=lambda _: EXPECTED)
def test_scikit_learn_has_no_complaint(estimator, check):
    check(estimator)


@pytest.mark.parametrize(
    "name",
    [
        "check_dataframe_column_names_consistency",
        "check_transformer_get_feature_names_out",
        "check_transformer_get_feature_names_out_pandas",
        "check_set_output_transform",
        "check_set_output_transform_pandas",
        "check_global_output_transform_pandas",
    ],
)
def test_tables_come_and_go_by_their_columns(name):
    pytest.importorskip("pandas")
    getattr(estimator_checks, name)("OpenSetClassifier", SMALL)
