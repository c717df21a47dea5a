import numpy as np

from pmal.reporting.page.sections.mistakes import MOST, most_telling


def test_the_most_confident_mistakes_come_first_either_way():
    wrong = np.array([True, True, False, True])
    p_values, scores = np.array([0.1, 0.5, 0.9, 0.5]), np.array([3.0, 2.0, 0.0, 1.0])
    assert most_telling(wrong, p_values, scores, known_first=True).tolist() == [3, 1, 0]
    assert most_telling(wrong, p_values, scores, known_first=False).tolist() == [0, 1, 3]


def test_without_p_values_the_score_orders_and_what_breaks_the_model_is_most_unknown():
    p_values, scores = np.full(4, np.nan), np.array([2.0, np.nan, 1.0, np.inf])
    wrong = np.ones(4, dtype=bool)
    assert most_telling(wrong, p_values, scores, known_first=True).tolist()[:2] == [2, 0]
    assert set(most_telling(wrong, p_values, scores, known_first=False).tolist()[:2]) == {1, 3}


def test_no_more_pictures_than_a_page_can_bear():
    many = np.ones(1000, dtype=bool)
    assert len(most_telling(many, np.zeros(1000), np.arange(1000.0), known_first=True)) == MOST == 24
    assert len(most_telling(~many, np.zeros(1000), np.arange(1000.0), known_first=True)) == 0
