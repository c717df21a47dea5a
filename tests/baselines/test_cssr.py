import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pmal.ensemble.heads import HeadConfig, HeadShape, create_head, scores_of
from pmal.errors import UsageError
from tests.baselines import toy
from tests.reference import newer as reference
from tests.reference.points import cross_entropy

DOUBLE = torch.float64


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 10**6), st.integers(2, 4), st.integers(1, 4), st.integers(1, 3), st.booleans())
def test_is_the_transcription(seed, K, D, L, reciprocal):
    torch.manual_seed(seed)
    head = toy.head_of("cssr", K, D, latent=L, gamma=0.3, reciprocal=reciprocal)
    z, train = torch.randn(6, D, dtype=DOUBLE), torch.randn(12, D, dtype=DOUBLE)
    labels = torch.randint(0, K, (6,))
    down, up = head.down.tolist(), head.up.tolist()
    logits = reference.cssr_logits(z.tolist(), down, up, 0.3, reciprocal)
    torch.testing.assert_close(head(z), torch.tensor(logits, dtype=DOUBLE))
    loss = head.loss(toy.Plain, z, labels, 0.0, None)
    assert loss.item() == pytest.approx(cross_entropy(logits, labels.tolist()), rel=1e-9)

    head.fit_after(train, head(train).detach(), torch.zeros(12, dtype=torch.int64))
    [found] = scores_of(head, z, head(z).detach()).values()
    before = reference.cssr_logits(train.tolist(), down, up, 0.3, reciprocal)
    wanted = reference.cssr_scores(train.tolist(), before, z.tolist(), logits, reciprocal)
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=DOUBLE), rtol=1e-6, atol=1e-6)


def test_an_error_beyond_any_is_no_infinite_logit():
    head = toy.head_of("cssr", K=2, D=3)
    assert head(torch.full((1, 3), 1e6, dtype=DOUBLE)).tolist() == [[-100.0, -100.0]]


@pytest.mark.parametrize("gram", [True, False])
def test_rejects_what_no_class_reconstructs(gram):
    model = toy.learn("cssr", gram=gram)
    x, labels = toy.clusters(400, 10**5)
    unknown = 0.2 * torch.randn(200, 2, generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        (z, logits), (far, far_logits) = (
            (z, model.head(z)) for z in (model.encoder(x[:, :, None, None]) for x in (x, unknown))
        )
        model.head.fit_after(z, logits, labels)
        known, new = (scores_of(model.head, *pair)["cssr"] for pair in ((z, logits), (far, far_logits)))
    assert (logits.argmax(1) == labels).double().mean() > 0.99
    assert toy.auroc(known, new) > 0.9


def test_a_matrix_that_no_memory_holds_is_refused():
    shape = HeadShape(2048, 100, 3, 64)
    with pytest.raises(UsageError, match=r"419,430,400 numbers: set method_options.gram=false"):
        create_head(HeadConfig("cssr"), shape)
    assert create_head(HeadConfig("cssr", {"gram": False}), shape).gram.numel() == 0
