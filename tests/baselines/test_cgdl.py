"""CGDL: its formulas, its ladder, and two scores that each see what the other cannot."""

import copy

import pytest
import torch
from torch.distributions import Normal
from torch.distributions import kl_divergence as torch_divergence
from torch.nn.functional import cross_entropy, softplus

from pmal.baselines.cgdl import Decoder, Gaussian, Ladder, kl_divergence, latent_score, merge, whitening
from pmal.config import EncoderConfig
from pmal.ensemble.classifier import Classifier, ClassifierSpec
from pmal.ensemble.heads import HeadConfig, scores_of
from pmal.errors import PmalError, UsageError
from pmal.reporting.metrics import auroc
from tests.reference import density as reference


def doubles(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def random_gaussian(B, L, seed):
    return Gaussian(doubles(B, L, seed=seed), doubles(B, L, seed=seed + 1).exp())


def test_the_divergence_is_the_integral():
    q, p = random_gaussian(3, 2, seed=0), random_gaussian(3, 2, seed=2)
    for b, found in enumerate(kl_divergence(q, p).tolist()):
        rows = zip(*(t[b].tolist() for t in (*q, *p)), strict=True)
        assert found == pytest.approx(sum(reference.kl_by_integration(*row) for row in rows), abs=1e-6)
    assert kl_divergence(q, q).abs().max() < 1e-12


def test_merged_is_the_product_of_the_densities():
    a, b = random_gaussian(1, 1, seed=0), random_gaussian(1, 1, seed=2)
    both = merge(a, b)
    logs = [
        reference.log_normal(x, *map(float, a)) + reference.log_normal(x, *map(float, b))
        - reference.log_normal(x, *map(float, both))
        for x in (-1.0, 0.3, 2.0)
    ]  # fmt: skip
    assert logs[0] == pytest.approx(logs[1]) == pytest.approx(logs[2])


def test_the_latent_score_is_the_transcription():
    t_BL, latents_KNL = doubles(20, 3), doubles(4, 9, 3, seed=1) @ doubles(3, 3, seed=2)
    mean_KL, white_KLL = latents_KNL.mean(dim=1), torch.stack([whitening(one_NL) for one_NL in latents_KNL])
    covariances = [reference.shrunk_covariance(rows) for rows in latents_KNL.tolist()]
    for t_L, score in zip(t_BL.tolist(), latent_score(t_BL, mean_KL, white_KLL).tolist(), strict=True):
        assert score == pytest.approx(reference.nearest_class(t_L, mean_KL.tolist(), covariances))


def test_what_breaks_the_correlation_is_far():
    """Both numbers are usual ones, and never of opposite sign."""
    first_N = doubles(500)
    latents_NL = torch.stack([first_N, first_N + 0.1 * doubles(500, seed=1)], dim=1)
    with_it, against_it = latent_score(
        torch.tensor([[1.0, 1.0], [1.0, -1.0]]), latents_NL.mean(0)[None], whitening(latents_NL)[None]
    ).tolist()
    assert against_it > 20 * with_it


@pytest.mark.parametrize("count", [1, 2, 5])
def test_few_images_of_a_class_give_a_distance(count):
    white_LL = whitening(doubles(count, 8))
    assert latent_score(doubles(3, 8, seed=1), torch.zeros(1, 8), white_LL[None]).isfinite().all()


def test_the_best_class_counts():
    mean_KL = doubles(4, 3)
    assert (latent_score(mean_KL, mean_KL, torch.eye(3).expand(4, 3, 3)) == 0).all()


@pytest.mark.parametrize("rungs", [1, 2, 3])
def test_without_noise_the_ladder_gives_means(rungs):
    torch.manual_seed(0)
    ladder, z_BD = Ladder(6, 4, rungs), torch.randn(5, 6)
    found = ladder.climb(z_BD)
    assert [g.mean_BL.shape[1] for g in found] == [4 * 2**r for r in reversed(range(rungs))]
    top_BL, bottom_BL, kl_B = ladder.descend(found, noise=False)
    assert torch.equal(top_BL, found[-1].mean_BL)
    assert bottom_BL.shape == (5, ladder.bottom_width)
    assert torch.equal(bottom_BL, ladder.descend(found, noise=False)[1])
    assert not torch.equal(bottom_BL, ladder.descend(found, noise=True)[1])
    assert (kl_B > 0).all() if rungs > 1 else (kl_B == 0).all()


def normal_of(layer, h_BD):
    mean_BL, raw_BL = layer.linear(h_BD).chunk(2, dim=1)
    return Normal(mean_BL, (softplus(raw_BL) + 0.01).sqrt())


def drawn(normal):
    return normal.mean + normal.stddev * torch.randn_like(normal.mean)


@pytest.mark.parametrize("rungs", [1, 2, 3])
def test_the_loss_is_that_of_the_ladder_written_out(rungs):
    """Rung by rung with torch's own distributions, and the same random numbers."""
    model = classifier(rungs=rungs, kl=0.2, reconstruction=0.7).train()
    head, ladder = model.head, model.head.ladder
    views, labels = torch.randn(6, 1, 8, 8), torch.tensor([0, 1, 2, 2, 1, 0])
    torch.manual_seed(7)
    found = head.loss(model, views, labels, 0.1, None)
    torch.manual_seed(7)
    h_BD = model.encoder(views)
    q = [normal_of(ladder.inference[0], h_BD)]
    for up, inference in zip(ladder.up, ladder.inference[1:], strict=True):
        h_BD = up(h_BD)
        q.append(normal_of(inference, h_BD))
    top = latent = drawn(q[-1])
    kl_B = torch_divergence(q[-1], Normal(head.class_means[labels], torch.ones(8))).sum(dim=1)
    for r in reversed(range(rungs - 1)):
        layer, gaussian = ladder.down[r]
        p = normal_of(gaussian, layer(latent))
        precision = 1 / q[r].variance + 1 / p.variance
        mean = (q[r].mean / q[r].variance + p.mean / p.variance) / precision
        posterior = Normal(mean, precision.rsqrt())
        kl_B = kl_B + torch_divergence(posterior, p).sum(dim=1)
        latent = drawn(posterior)
    error = (views - head.decoder(latent)).square().mean()
    likelihood = cross_entropy(head.classifier(top), labels, label_smoothing=0.1)
    torch.testing.assert_close(found, likelihood + 0.2 * kl_B.mean() + 0.7 * error, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("channels", "size"), [(1, 8), (3, 9), (1, 28), (3, 33), (1, 64)])
def test_decodes_images_of_any_size(size, channels):
    assert Decoder(5, channels, size, width=32)(torch.randn(2, 5)).shape == (2, channels, size, size)


def classifier(**options):
    spec = ClassifierSpec(
        EncoderConfig("small"), ("dark", "top", "right"), 8, 1, HeadConfig("cgdl", {"latent": 8, **options})
    )
    torch.manual_seed(0)
    return Classifier(spec).use_channels_last()


def shades(count, generator):
    """Dark images, and such that are bright in one half."""
    labels_B = torch.randint(0, 3, (count,), generator=generator)
    images_BCHW = torch.randint(0, 40, (count, 1, 8, 8), generator=generator)
    images_BCHW[labels_B == 1, :, :4] += 200
    images_BCHW[labels_B == 2, :, :, 4:] += 200
    return images_BCHW.to(torch.uint8), labels_B


def checkers(count):
    rows = torch.arange(8)
    board = 230 * ((rows[:, None] + rows) % 2)
    noise = torch.randint(0, 20, (count, 1, 8, 8), generator=torch.Generator().manual_seed(5))
    return (board + noise).to(torch.uint8)


@pytest.fixture(scope="module")
def trained():
    model, generator = classifier(), torch.Generator().manual_seed(0)
    model.set_normalization(torch.tensor([0.35]), torch.tensor([0.35]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    for _ in range(60):
        images, labels_B = shades(64, generator)
        views = (images.float() / 255 - model.mean) / model.std
        loss = model.head.loss(model, views, labels_B, 0.0, None)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    images, labels_B = shades(300, generator)
    with torch.no_grad():
        model.head.fit_after(*model.embed(images), labels_B)
    return model


@torch.no_grad()
def scores(model, images):
    z_BD, logits_BK = model.embed(images)
    return scores_of(model.head, z_BD, logits_BK)


@pytest.mark.slow
def test_an_image_of_no_class_is_unknown(trained):
    images, labels_B = shades(200, torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert (trained.embed(images)[1].argmax(1) == labels_B).float().mean() > 0.97
    known, unknown = scores(trained, images), scores(trained, checkers(200))
    for name in ("cgdl", "reconstruction", "latent"):
        assert auroc(known[name], unknown[name]) > 0.97, name
        assert auroc(-known[name], -unknown[name]) < 0.03, name  # the other sign would be wrong


@pytest.mark.slow
def test_the_scale_is_the_papers_rule(trained):
    """Of the training images, a score is above 1 where one of the two is above its 95 % quantile."""
    images, labels_B = shades(300, torch.Generator().manual_seed(2))
    with torch.no_grad():
        trained.head.fit_after(*trained.embed(images), labels_B)
    found = scores(trained, images)
    either_B = torch.zeros(300, dtype=torch.bool)
    for name in ("reconstruction", "latent"):
        either_B |= found[name] > found[name].quantile(0.95) + 1e-6
        assert 0.04 < (found[name] > found[name].quantile(0.95)).double().mean() < 0.06
    assert torch.equal(found["cgdl"] > 1 + 1e-5, either_B)


def test_the_gaussians_are_those_of_images_classified_right(trained):
    images, labels_B = shades(90, torch.Generator().manual_seed(3))
    with torch.no_grad():
        z_BD, logits_BK = trained.embed(images)
        wrong = (labels_B == 1).nonzero()[0]
        logits_BK[wrong] = torch.tensor([9.0, 0.0, 0.0])
        trained.head.fit_after(z_BD, logits_BK, labels_B)
        latents_BL = trained.head.top_latent(z_BD)
    used_B = (labels_B == 1) & (torch.arange(90) != wrong)
    torch.testing.assert_close(trained.head.latent_mean[1], latents_BL[used_B].mean(0))
    expected_LL = whitening(latents_BL[used_B].double()).float()
    torch.testing.assert_close(trained.head.latent_whitening[1], expected_LL)


def test_a_class_without_training_images_has_the_gaussian_it_was_drawn_to():
    model = classifier()
    z_ND, labels_N = torch.randn(20, model.num_features), torch.arange(20) % 2
    with torch.no_grad():
        model.head.fit_after(z_ND, torch.zeros(20, 3), labels_N)
    assert torch.equal(model.head.latent_mean[2], model.head.class_means[2])
    assert torch.equal(model.head.latent_whitening[2], torch.eye(8))
    assert not torch.equal(model.head.latent_mean[1], model.head.class_means[1])


def test_logits_do_not_depend_on_the_column_that_is_added(trained):
    images, _ = shades(5, torch.Generator().manual_seed(4))
    with torch.no_grad():
        z_BD, logits_BK = trained.embed(images)
        assert z_BD.shape[1] == trained.num_features == trained.encoder.num_features + 1
        assert torch.equal(trained.head(z_BD[:, :-1]), logits_BK)


@pytest.mark.parametrize("column", [0, -1])
def test_broken_is_unknown(trained, column):
    with torch.no_grad():
        z_BD, _ = trained.embed(checkers(2))
        z_BD[0, column] = torch.nan
        found = scores_of(trained.head, z_BD, trained.head(z_BD))
    assert found["cgdl"][0] == torch.inf
    assert found["cgdl"][1].isfinite()


def test_a_network_that_has_diverged_is_said_in_one_line(trained):
    z_ND, labels_N = torch.full((4, trained.num_features), torch.nan), torch.tensor([0, 1, 2, 0])
    head = copy.deepcopy(trained.head)
    with pytest.raises(PmalError, match=r"no finite numbers: lower training\.learning_rate$"):
        head.fit_after(z_ND, torch.zeros(4, 3), labels_N)


def test_the_prior_draws_each_class_to_its_own_mean():
    model = classifier()
    with torch.no_grad():
        prior = model.head.prior(torch.tensor([2, 0, 2]))
    assert torch.equal(prior.mean_BL, model.head.class_means[[2, 0, 2]])
    assert (prior.var_BL == 1).all()


def test_embeddings_without_pixels_are_refused():
    spec = ClassifierSpec(EncoderConfig("precomputed"), ("a", "b"), 1, 4, HeadConfig("cgdl"))
    with pytest.raises(UsageError, match="cgdl reconstructs images, and embeddings are none"):
        Classifier(spec)


@pytest.mark.parametrize("options", [{"latent": 0}, {"rungs": 0}])
def test_options_out_of_range_are_refused(options):
    with pytest.raises(UsageError, match="must be 1 or more"):
        classifier(**options)
