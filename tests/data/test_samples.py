from pmal.data.samples import evenly


def test_choices_are_spread_over_all():
    assert evenly(100_000, 1_000)[[0, -1]].tolist() == [0, 99_999]
    assert len(set(evenly(1_001, 1_000).tolist())) == 1_000
    assert evenly(0, 10).tolist() == []
