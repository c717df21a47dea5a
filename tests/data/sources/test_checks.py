"""Refusals that several readers share."""

import numpy as np
import pytest

from pmal.data.sources._refused import check_labels
from pmal.errors import DataError


@pytest.mark.parametrize("wrong", [-1, 3, 2**40])
def test_labels_outside_the_classes_are_refused(wrong: int) -> None:
    check_labels(np.array([0, 2, 1]), 3, "labels")
    with pytest.raises(DataError, match=rf"^labels: label {wrong} of image 1 is not in 0\.\.2$"):
        check_labels(np.array([0, wrong, 1]), 3, "labels")
