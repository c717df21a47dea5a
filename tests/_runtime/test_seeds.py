import contextlib

import torch
from hypothesis import given
from hypothesis import strategies as st

from pmal._runtime.seeds import OwnRandomness, random_state, restore_random_state, seeded, stream

CPU = torch.device("cpu")


@given(st.integers(0, 1000), st.integers(0, 1000))
def test_streams_are_apart(a, b):
    assert (stream(0, "classifier", a) == stream(0, "classifier", b)) == (a == b)
    assert (stream(a, "x") == stream(b, "x")) == (a == b)
    assert 0 <= stream(a, b) < 2**63


def test_streams_do_not_change_between_versions():
    assert stream(0, "classifier", 0) == 231047372950893754


def test_seeded_gives_the_callers_state_back():
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    with seeded(7, CPU):
        inside = torch.rand(3)
    assert torch.equal(torch.rand(3), expected)
    with seeded(7, CPU):
        assert torch.equal(torch.rand(3), inside)


def test_own_randomness_goes_on_where_it_was_and_leaves_the_callers_alone():
    torch.manual_seed(1)
    expected = torch.rand(3)
    own = OwnRandomness(7, CPU)
    torch.manual_seed(1)
    with own.current():
        first = torch.rand(3)
    with contextlib.suppress(KeyError), own.current():
        second = torch.rand(3)
        raise KeyError
    assert torch.equal(torch.rand(3), expected)
    with seeded(7, CPU):
        assert torch.equal(torch.rand(3), first)
        assert torch.equal(torch.rand(3), second)


def test_random_state_round_trip():
    with seeded(3, CPU):
        state = random_state(CPU)
        first = torch.rand(5)
        restore_random_state(state, CPU)
        assert torch.equal(torch.rand(5), first)
