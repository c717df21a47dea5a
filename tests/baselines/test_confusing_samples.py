import pytest
import torch

from pmal.baselines.confusing_samples import ConfusingSamples, embed_apart
from pmal.errors import UsageError
from tests.reference import points as reference


@pytest.mark.parametrize(("channels", "size"), [(1, 8), (3, 9), (1, 28), (3, 64), (1, 65)])
def test_any_size(size, channels):
    parts = ConfusingSamples(channels, size, noise=5, width=2)
    mean, std = torch.full((channels,), 0.25), torch.full((channels,), 0.5)
    fakes = parts.generate(3, mean, std)
    assert fakes.shape == (3, channels, size, size)
    assert -0.5 <= fakes.min() < fakes.max() <= 1.5  # pixels in 0 to 1, normalized
    assert parts.discriminator(fakes).shape == (3, 1)


def test_generated_pixels_are_normalized_like_real_ones():
    parts, mean, std = ConfusingSamples(2, 8, 3, 2), torch.tensor([0.4, 0.1]), torch.tensor([0.3, 0.2])
    torch.manual_seed(0)
    pixels = parts.generate(4, torch.zeros(2), torch.ones(2))
    torch.manual_seed(0)
    expected = (pixels - mean[:, None, None]) / std[:, None, None]
    torch.testing.assert_close(parts.generate(4, mean, std), expected)
    assert not list(parts.buffers())  # nothing but weights to save, or to average


def test_networks_are_as_wide_and_start_as_in_dcgan():
    parts = ConfusingSamples(1, 256, noise=100, width=16)  # doubled six times from 4 px
    widths = [16 * times for times in (8, 8, 8, 4, 2, 1)]
    convolutions = [m for m in parts.generator if isinstance(m, torch.nn.ConvTranspose2d)]
    assert [m.in_channels for m in convolutions] == widths
    judging = [m for m in parts.discriminator if isinstance(m, torch.nn.Conv2d)]
    assert [m.in_channels for m in judging[1:]] == widths[::-1]
    for layer in (parts.generator[0], convolutions[0], judging[1]):
        assert layer.weight.mean().abs() < 0.002
        assert layer.weight.std().item() == pytest.approx(0.02, rel=0.1)
    scales = torch.cat([m.weight for m in parts.modules() if isinstance(m, torch.nn.BatchNorm2d)])
    assert scales.mean().item() == pytest.approx(1.0, abs=0.01)
    assert scales.std().item() == pytest.approx(0.02, rel=0.2)


def test_losses_are_the_transcription():
    torch.manual_seed(0)
    parts = ConfusingSamples(1, 8, noise=3, width=2).double()
    reals, fakes = torch.randn(4, 1, 8, 8).double(), torch.randn(4, 1, 8, 8).double()
    judged = [parts.discriminator(x)[:, 0].tolist() for x in (reals, fakes)]
    found = parts.adversarial_loss(reals, fakes).item()
    assert found == pytest.approx(sum(reference.adversarial(*judged)), rel=1e-6)


def test_each_network_is_moved_by_its_own_loss_alone():
    torch.manual_seed(0)
    parts = ConfusingSamples(1, 8, noise=3, width=2)
    fakes = torch.randn(4, 1, 8, 8, requires_grad=True)
    reals = torch.randn(4, 1, 8, 8)
    total = parts.adversarial_loss(reals, fakes)
    softplus = torch.nn.functional.softplus
    weights = list(parts.discriminator.parameters())
    of_judge = softplus(-parts.discriminator(reals)).mean() + softplus(parts.discriminator(fakes)).mean()
    of_maker = softplus(-parts.discriminator(fakes)).mean()
    found = torch.autograd.grad(total, [fakes, *weights])
    expected = [*torch.autograd.grad(of_maker, [fakes], retain_graph=True)]
    expected += torch.autograd.grad(of_judge, weights)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-7)


@pytest.mark.slow
def test_the_pair_learns():
    """Real images are white: the generator, which starts gray, turns white."""
    torch.manual_seed(0)
    parts = ConfusingSamples(1, 8, noise=4, width=8)
    optimizer = torch.optim.Adam(parts.parameters(), lr=2e-3, betas=parts.adam_betas)
    zero, one, reals = torch.zeros(1), torch.ones(1), torch.full((16, 1, 8, 8), 0.95)
    before = parts.generate(16, zero, one).mean().item()
    for _ in range(150):
        loss = parts.adversarial_loss(reals, parts.generate(16, zero, one))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert before == pytest.approx(0.5, abs=0.05)
    assert parts.generate(16, zero, one).mean() > 0.8


def test_apart_changes_no_buffer_but_uses_the_batch():
    norm = torch.nn.BatchNorm1d(2)
    kept = {name: buffer.clone() for name, buffer in norm.named_buffers()}
    z = embed_apart(norm, 5 + torch.randn(50, 2))
    assert z.mean().abs() < 1e-5
    assert all(torch.equal(buffer, kept[name]) for name, buffer in norm.named_buffers())


@pytest.mark.parametrize("options", [(1, 4, 3, 2), (1, 8, 0, 2), (1, 8, 3, 0)])
def test_impossible_shapes_are_refused(options):
    with pytest.raises(UsageError, match=r"8 px or more, not of 4|both must be 1 or more"):
        ConfusingSamples(*options)
