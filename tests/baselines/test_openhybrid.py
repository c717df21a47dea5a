"""OpenHybrid: the flow is a density, and one that says where the training data were."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from pmal.baselines.openhybrid import Coupling, Flow, HybridHead
from pmal.config import EncoderConfig
from pmal.ensemble.classifier import Classifier, ClassifierSpec
from pmal.ensemble.heads import HeadConfig, HeadShape, scores_of
from pmal.errors import UsageError
from pmal.reporting.metrics import auroc
from tests.reference import density as reference

CENTERS = torch.tensor([[-2.0, 0.0], [2.0, 0.0]])


def random_flow(features, layers=3, seed=0):
    torch.manual_seed(seed)
    flow = Flow(features, layers, width=8).double()
    for parameter in flow.parameters():  # the last layers begin at zero, where every flow is the identity
        torch.nn.init.normal_(parameter, std=0.7)
    return flow


@pytest.mark.parametrize("features", [2, 3, 5])
def test_the_density_is_the_transcription(features):
    flow = random_flow(features)
    x_BD = torch.randn(4, features, dtype=torch.float64)
    for x_D in x_BD:
        jacobian = torch.autograd.functional.jacobian(lambda x: flow(x[None])[0][0], x_D)
        transform = lambda x: flow(torch.tensor([x], dtype=torch.float64))[0][0].tolist()  # noqa: E731
        expected = reference.log_density(x_D.tolist(), transform, jacobian.tolist())
        assert flow.log_density(x_D[None]).item() == pytest.approx(expected, abs=1e-9)
        assert flow(x_D[None])[1].item() == pytest.approx(torch.linalg.slogdet(jacobian)[1].item(), abs=1e-9)


@pytest.mark.parametrize("features", [2, 5])
def test_every_channel_is_moved_and_comes_back(features):
    flow = random_flow(features)
    x_BD = torch.randn(6, features, dtype=torch.float64)
    y_BD = flow(x_BD)[0]
    assert ((y_BD - x_BD).abs() > 1e-3).any(dim=0).all()
    for coupling in reversed(flow.couplings):  # what moved half of the channels stayed itself
        given_BH, moved_BH, log_scale_BH, shift_BH = coupling.plan(y_BD)
        back_BH = (moved_BH - shift_BH) * (-log_scale_BH).exp()
        y_BD = torch.cat([given_BH, back_BH] if coupling.first else [back_BH, given_BH], dim=1)
    torch.testing.assert_close(y_BD, x_BD)


@pytest.mark.slow
def test_the_density_has_mass_one():
    flow = random_flow(2, layers=2)
    axis = torch.linspace(-40, 40, 601, dtype=torch.float64)
    grid_ND = torch.cartesian_prod(axis, axis)
    mass = flow.log_density(grid_ND).exp().sum() * (axis[1] - axis[0]) ** 2
    assert mass.item() == pytest.approx(1, abs=0.02)


def test_a_coupling_scales_by_no_more_than_e_squared_and_little_by_what_is_asked():
    coupling = Coupling(4, 8, first=True)
    with torch.no_grad():
        coupling.net[-1].bias.copy_(torch.tensor([0.01, -1e3, 0.5, -0.5]))
    *_, log_scale_BH, shift_BH = coupling.plan(torch.randn(1, 4))
    assert log_scale_BH[0].tolist() == pytest.approx([0.01, -2.0], rel=1e-4)
    assert shift_BH[0].tolist() == [0.5, -0.5]


def test_the_loss_is_cross_entropy_and_density_per_channel_of_noisy_embeddings():
    torch.manual_seed(0)
    head = HybridHead(HeadShape(3, 2, 3, 1), weight=0.6, layers=2, width=8, noise=0.5, unit=False).double()
    for parameter in head.flow.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    z_BD, labels_B = torch.randn(9, 3, dtype=torch.float64), torch.arange(9) % 2
    torch.manual_seed(1)
    found = head.known_loss(z_BD, labels_B, 0.1)
    torch.manual_seed(1)
    x_BD = (z_BD - z_BD.mean(0)) / (z_BD.var(0, correction=0) + head.standard.eps).sqrt()
    density = head.flow.log_density(x_BD + 0.5 * torch.randn_like(x_BD)).mean()
    likelihood = cross_entropy(
        z_BD @ head.classifier.weight.T + head.classifier.bias, labels_B, label_smoothing=0.1
    )
    torch.testing.assert_close(found, likelihood - 0.6 / 3 * density)


def classifier(**options):
    spec = ClassifierSpec(
        EncoderConfig("precomputed"), ("a", "b"), 1, 2, HeadConfig("openhybrid", options | {"width": 16})
    )
    torch.manual_seed(0)
    return Classifier(spec)


def clusters(count, generator):
    labels_B = torch.randint(0, 2, (count,), generator=generator)
    return CENTERS[labels_B] + 0.2 * torch.randn(count, 2, generator=generator), labels_B


@pytest.fixture(scope="module")
def trained():
    """With share 0: of two numbers, a joint encoder may drop the one that does not tell the classes apart."""
    return train(classifier(share=0.0, unit=False, layers=4))


def train(model):
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    for _ in range(200):
        x_BD, labels_B = clusters(64, generator)
        loss = model.head.loss(model, x_BD[:, :, None, None], labels_B, 0.0, None)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


@torch.no_grad()
def density(model, x_BD):
    z_BD, logits_BK = model.embed(x_BD[:, :, None, None])
    return scores_of(model.head, z_BD, logits_BK)["density"]


@pytest.mark.slow
def test_what_lies_between_and_beyond_the_clusters_is_unknown(trained):
    known_BD, labels_B = clusters(200, torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert (trained(known_BD[:, :, None, None]).argmax(1) == labels_B).float().mean() > 0.99
    for odd in ([0.0, 0.0], [0.0, 4.0], [-2.0, 3.0], [6.0, 0.0]):
        unknown_BD = torch.tensor(odd) + 0.2 * torch.randn(200, 2, generator=torch.Generator().manual_seed(2))
        known, unknown = density(trained, known_BD), density(trained, unknown_BD)
        assert auroc(known, unknown) > 0.97, odd
        assert auroc(-known, -unknown) < 0.03  # the other sign would be wrong


@pytest.mark.slow
def test_the_density_of_the_direction_ignores_the_length():
    model = train(classifier(layers=4))
    known_BD, _ = clusters(200, torch.Generator().manual_seed(1))
    across_BD = known_BD.flip(1)  # as long, in directions that were not learned
    assert auroc(density(model, known_BD), density(model, across_BD)) > 0.97
    z_BD, logits_BK = (part.detach() for part in model.embed(known_BD[:, :, None, None]))
    longer, known = (scores_of(model.head, z, logits_BK)["density"] for z in (4 * z_BD, z_BD))
    torch.testing.assert_close(longer, known, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("unit", [True, False])
def test_the_score_is_the_transcription_of_the_standardized_direction(unit):
    torch.manual_seed(0)
    head = HybridHead(HeadShape(3, 2, 3, 1), layers=2, width=8, unit=unit).double().eval()
    head.standard.running_mean.copy_(torch.tensor([0.3, -0.1, 0.2]))
    head.standard.running_var.copy_(torch.tensor([0.5, 2.0, 1.0]))
    for parameter in head.flow.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    for z in ([1.0, -2.0, 0.5], [0.01, 0.02, -0.03]):
        variance = [v + head.standard.eps for v in head.standard.running_var.tolist()]
        x = reference.standardized(z, head.standard.running_mean.tolist(), variance, unit)
        jacobian = torch.autograd.functional.jacobian(
            lambda v: head.flow(v[None])[0][0], torch.tensor(x).double()
        )
        transform = lambda v: head.flow(torch.tensor([v], dtype=torch.float64))[0][0].tolist()  # noqa: E731
        expected = -reference.log_density(x, transform, jacobian.tolist())
        z_BD = torch.tensor([z], dtype=torch.float64)
        assert scores_of(head, z_BD, head(z_BD))["density"].item() == pytest.approx(expected, abs=1e-6)


def test_an_embedding_of_zeros_has_a_density_and_a_bounded_gradient():
    head = HybridHead(HeadShape(4, 2, 4, 1), noise=0.0)
    assert head.eval().log_density(torch.zeros(1, 4)).isfinite().all()
    z_BD = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
    z_BD[0] = 0
    head.train().log_density(z_BD.requires_grad_()).sum().backward()
    assert z_BD.grad.norm(dim=1).max() < 1e4


def test_weights_of_the_embedding_itself_are_not_taken_for_those_of_its_direction():
    one, other = (HybridHead(HeadShape(4, 2, 4, 1), unit=unit) for unit in (False, True))
    with pytest.raises(RuntimeError, match="length"):
        other.load_state_dict(one.state_dict())


@pytest.mark.slow
def test_broken_is_unknown(trained):
    assert density(trained, torch.tensor([[torch.nan, 0.0]])).tolist() == [torch.inf]


def test_share_is_what_reaches_the_encoder():
    gradients = {}
    for share in (0.0, 0.5, 1.0):
        model, (x_BD, labels_B) = classifier(share=share), clusters(32, torch.Generator().manual_seed(0))
        for parameter in model.head.classifier.parameters():
            torch.nn.init.zeros_(parameter)  # so the cross entropy has no gradient for the encoder
        for coupling in model.head.flow.couplings:
            torch.nn.init.normal_(coupling.net[-1].weight, generator=torch.Generator().manual_seed(3))
        torch.manual_seed(0)
        model.head.loss(model, x_BD[:, :, None, None], labels_B, 0.0, None).backward()
        gradients[share] = model.encoder.linear.weight.grad
    assert (gradients[0.0] == 0).all()
    assert gradients[1.0].abs().max() > 0
    torch.testing.assert_close(2 * gradients[0.5], gradients[1.0])


def test_shrinking_the_embedding_gains_nothing():
    head = HybridHead(HeadShape(4, 2, 4, 1), noise=0.0, unit=False)
    z_BD = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(head.log_density(z_BD), head.log_density(0.1 * z_BD), rtol=0, atol=1e-2)


def test_a_channel_that_is_always_zero_does_no_harm():
    head = HybridHead(HeadShape(4, 2, 4, 1), unit=False)
    z_BD = torch.randn(64, 4, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 1, 1, 0])
    assert head.log_density(z_BD, 0.1).isfinite().all()
    head.eval()
    assert head.log_density(torch.zeros(1, 4)).isfinite().all()


@pytest.mark.parametrize(("features", "options"), [(1, {}), (4, {"layers": 1})])
def test_a_flow_without_two_halves_is_refused(features, options):
    with pytest.raises(UsageError, match="2 or more features and layers"):
        HybridHead(HeadShape(features, 2, 1, 1), **options)


def test_a_batch_of_one_is_refused():
    model = classifier()
    with pytest.raises(UsageError, match=r"training\.batch_size"):
        model.head.loss(model, torch.zeros(1, 2, 1, 1), torch.zeros(1, dtype=torch.int64), 0.0, None)
