"""CGDL: conditional Gaussian distribution learning (Sun et al., CVPR 2020).

A ladder VAE whose top latent t is drawn to a Gaussian of its class, and classified. From the embedding z of
the encoder goes one path up, with a Gaussian of its own at each rung, and one path down:

    up         m^_r, v^_r of rung r from h_r;  h_1 = z,  h_{r+1} = act(W_r h_r)
    top        q(t | x) = N(m^_R, v^_R)                          prior of class y: N(f(y), I), f learned
    below      p(z_r | z_{r+1}) = N(m_r, v_r);  q(z_r | x) has precision 1/v^_r + 1/v_r, and the mean of the
               two weighted by theirs
    loss       cross entropy(C t, y) + kl (KL(q(t) || N(f(y), I)) + sum_r KL(q(z_r) || p(z_r)))
               + reconstruction mean_pixels (x - decoder(z_1))^2

Once trained, class k has the Gaussian N(m_k, S_k) of the top latents of its n_k training images that are
classified right; off its diagonal S_k is taken times n_k / (n_k + L), because few images say little of it.
An image is unknown if it is badly reconstructed, or fits no class:

    score reconstruction   mean_pixels (x - decoder(z_1))^2, without noise
    score latent           min_k (t - m_k)^T S_k^-1 (t - m_k) / L
    score cgdl             the larger of the two, each scaled so that the median of the training set is 0 and
                           its 95 % quantile 1: above 1 is what one threshold or the other rejects

What differs from the paper:
- Its rungs stand at the convolutions of an encoder of its own, ours at layers on top of the pooled embedding,
  because every method has the same encoder: less of the pixels gets through. One small decoder follows the
  lowest latent.
- The public code weighs reconstruction, KL and cross entropy 1 : 1 : 100. Here it is 1 : 0.03 : 1, so that
  pixels are learned at the rate of the classes; of 0.003, 0.01 and 0.03 the last had the best accuracy on the
  embedded sample. KL has its full weight from the first step: no warm-up.
- The latent's rule in the paper is 1 - the probability of the box m_k -+ |t - m_k|; the public code compares
  the density with that at a corner of a box around m_k, so that the determinant of S_k cancels, and the
  distance above stands.
- Both thresholds are training quantiles; the paper sets the latent's to a probability of 0.5.
- Public code has no AUROC of its two rules together; "the larger of both" is our reading. On photographs
  `reconstruction` measures the contrast of an image, whatever the class: the larger of both is then worse
  than `latent`.

B samples, K classes, D channels, L latent numbers.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, softplus

from pmal.config import Count
from pmal.encoders.registry import SMALLEST_IMAGE
from pmal.ensemble.classifier import Classifier
from pmal.ensemble.heads import Head, HeadShape, register_method
from pmal.errors import PmalError, UsageError

QUANTILES = (0.5, 0.95)
_SMALLEST_VARIANCE = 1e-2
_SMALLEST_DEVIATION = 1e-3
_ROWS = 8192


class Gaussian(NamedTuple):
    """Independent normal distributions."""

    mean_BL: Tensor
    var_BL: Tensor

    def draw(self, noise: bool) -> Tensor:
        """Return a sample of each; without noise, their means."""
        if not noise:
            return self.mean_BL
        return self.mean_BL + self.var_BL.sqrt() * torch.randn_like(self.mean_BL)


def kl_divergence(q: Gaussian, p: Gaussian) -> Tensor:
    """Return KL(q || p), summed over the latent numbers, (B,).

    >>> one, zero = torch.ones(1, 2), torch.zeros(1, 2)
    >>> kl_divergence(Gaussian(one, one), Gaussian(zero, one))
    tensor([1.])
    """
    squares_BL = (q.mean_BL - p.mean_BL).square()
    terms_BL = (p.var_BL / q.var_BL).log() + (q.var_BL + squares_BL) / p.var_BL - 1
    return 0.5 * terms_BL.sum(dim=1)


def merge(a: Gaussian, b: Gaussian) -> Gaussian:
    """Return the product of two densities: precisions add up, and means are weighted by them."""
    var_BL = 1 / (1 / a.var_BL + 1 / b.var_BL)
    return Gaussian(var_BL * (a.mean_BL / a.var_BL + b.mean_BL / b.var_BL), var_BL)


def whitening(latents_NL: Tensor) -> Tensor:
    """Return W (L, L) such that |W (t - mean)|^2 is the squared distance by the covariance of these latents.

    Off the diagonal the covariance shrinks, as if L more samples with independent numbers had been seen.
    """
    count, size = latents_NL.shape
    centered_NL = latents_NL - latents_NL.mean(dim=0)
    cov_LL = centered_NL.T @ centered_NL / count
    diagonal_LL = torch.diag(cov_LL.diagonal().clamp(min=_SMALLEST_DEVIATION**2))
    shrunk_LL = diagonal_LL + count / (count + size) * (cov_LL - torch.diag(cov_LL.diagonal()))
    eye_LL = torch.eye(size, dtype=cov_LL.dtype, device=cov_LL.device)
    factor_LL = torch.linalg.cholesky(shrunk_LL)
    white_LL: Tensor = torch.linalg.solve_triangular(factor_LL, eye_LL, upper=False)
    return white_LL


def latent_score(t_BL: Tensor, mean_KL: Tensor, whitening_KLL: Tensor) -> Tensor:
    """Return the squared distance to the class that fits best, by its covariance and over L, float64 (B,).

    >>> latent_score(torch.tensor([[2.0, 0.0]]), torch.zeros(1, 2), torch.eye(2)[None])
    tensor([2.], dtype=torch.float64)
    """
    score_B = t_BL.new_full(t_BL.shape[:1], math.inf, dtype=torch.float64)
    # One class at a time: all of a thousand at once would be gigabytes.
    for mean_L, white_LL in zip(mean_KL.double(), whitening_KLL.double(), strict=True):
        score_B = torch.minimum(score_B, ((t_BL.double() - mean_L) @ white_LL.T).square().mean(dim=1))
    return score_B


class GaussianLayer(nn.Module):
    """Mean and variance from one linear layer."""

    def __init__(self, features: int, latent: int) -> None:
        super().__init__()
        self.linear = nn.Linear(features, 2 * latent)

    def forward(self, h_BD: Tensor) -> Gaussian:
        mean_BL, raw_BL = self.linear(h_BD).chunk(2, dim=1)
        return Gaussian(mean_BL, softplus(raw_BL) + _SMALLEST_VARIANCE)


class Ladder(nn.Module):
    """Rungs of latents over an embedding; each has half the width of the one below."""

    def __init__(self, features: int, latent: int, rungs: int) -> None:
        super().__init__()
        widths = [latent * 2 ** (rungs - 1 - r) for r in range(rungs)]
        self.bottom_width = widths[0]
        self.up = nn.ModuleList(_layer(features, features) for _ in range(rungs - 1))
        self.inference = nn.ModuleList(GaussianLayer(features, width) for width in widths)
        below, above = widths[:-1], widths[1:]
        self.down = nn.ModuleList(
            nn.Sequential(_layer(wide, features), GaussianLayer(features, narrow))
            for narrow, wide in zip(below, above, strict=True)
        )

    def climb(self, z_BD: Tensor) -> list[Gaussian]:
        """Return what the way up says of each rung, from the bottom to the top."""
        found = [self.inference[0](z_BD)]
        for up, inference in zip(self.up, self.inference[1:], strict=True):
            z_BD = up(z_BD)
            found.append(inference(z_BD))
        return found

    def descend(self, found: list[Gaussian], noise: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Return latents of the top and of the bottom, and the KL divergence of all rungs but the top."""
        latent_BL = top_BL = found[-1].draw(noise)
        kl_B = latent_BL.new_zeros(latent_BL.shape[0])
        for down, inferred in reversed(list(zip(self.down, found[:-1], strict=True))):
            prior = down(latent_BL)
            posterior = merge(inferred, prior)
            kl_B = kl_B + kl_divergence(posterior, prior)
            latent_BL = posterior.draw(noise)
        return top_BL, latent_BL, kl_B


class Decoder(nn.Module):
    """Images of any size from latents: doubled from 4 to 7 pixels on, and cropped."""

    def __init__(self, latent: int, channels: int, size: int, width: int = 128) -> None:
        super().__init__()
        doublings = max(1, int(math.log2(size / 4)))
        self.size, self.first = size, -(-size // 2**doublings)
        self.width = width
        self.linear = nn.Linear(latent, width * self.first**2)
        layers: list[nn.Module] = []
        for i in range(doublings):
            last, narrow = i == doublings - 1, max(32, width // 2)
            layers.append(nn.BatchNorm2d(width))
            layers.append(nn.ReLU(inplace=True))
            layers.append(nn.ConvTranspose2d(width, channels if last else narrow, 4, stride=2, padding=1))
            width = narrow
        self.layers = nn.Sequential(*layers)

    def forward(self, latent_BL: Tensor) -> Tensor:
        first_BCHW = self.linear(latent_BL).view(-1, self.width, self.first, self.first)
        images_BCHW: Tensor = self.layers(first_BCHW.contiguous(memory_format=torch.channels_last))
        return images_BCHW[:, :, : self.size, : self.size]


@register_method(
    "cgdl",
    paper="Sun et al., Conditional Gaussian Distribution Learning for Open Set Recognition, CVPR 2020",
)
class ConditionalGaussianHead(Head):
    """A ladder VAE on the embedding, whose top latent is classified.

    Args:
        latent: numbers of the top latent.
        rungs: of the ladder.
        kl: weight of the divergences in the loss.
        reconstruction: weight of the squared error in the loss.
    """

    own_scores = ("cgdl", "reconstruction", "latent")
    extra_features = 1
    is_fitted_after = True
    latent_mean: Tensor
    latent_whitening: Tensor
    scale: Tensor

    def __init__(
        self,
        shape: HeadShape,
        latent: Count = 32,
        rungs: Count = 2,
        kl: float = 0.03,
        reconstruction: float = 1.0,
    ) -> None:
        super().__init__()
        if shape.image_size < SMALLEST_IMAGE:
            raise UsageError(
                "method cgdl reconstructs images, and embeddings are none: choose another method"
            )
        self.features, self.kl, self.reconstruction = shape.features, kl, reconstruction
        self.ladder = Ladder(shape.features, latent, rungs)
        self.decoder = Decoder(self.ladder.bottom_width, shape.channels, shape.image_size)
        self.classifier = nn.Linear(latent, shape.classes, bias=shape.bias)
        self.class_means = nn.Parameter(torch.randn(shape.classes, latent))
        self.register_buffer("latent_mean", torch.zeros(shape.classes, latent))
        self.register_buffer("latent_whitening", torch.eye(latent).repeat(shape.classes, 1, 1))
        self.register_buffer("scale", torch.tensor([[0.0, 1.0], [0.0, 1.0]]))

    def forward(self, z_BD: Tensor) -> Tensor:
        with torch.autocast(z_BD.device.type, enabled=False):
            logits_BK: Tensor = self.classifier(self.top_latent(z_BD))
        return logits_BK

    def top_latent(self, z_BD: Tensor) -> Tensor:
        """Return the mean of the top latent; embeddings may have the column that `complete` adds."""
        return self.ladder.climb(z_BD[:, : self.features].to(self.scale.dtype))[-1].mean_BL

    def loss(
        self,
        model: Classifier,
        views_BCHW: Tensor,
        labels_B: Tensor,
        smoothing: float,
        parts: nn.Module | None,
    ) -> Tensor:
        z_BD = model.encoder(views_BCHW)
        # Not in mixed precision: variances and their logarithms need the digits.
        with torch.autocast(z_BD.device.type, enabled=False):
            found = self.ladder.climb(z_BD.float())
            top_BL, bottom_BL, kl_B = self.ladder.descend(found, noise=True)
            kl_B = kl_B + kl_divergence(found[-1], self.prior(labels_B))
            likelihood = cross_entropy(self.classifier(top_BL), labels_B, label_smoothing=smoothing)
        error = squared_error(views_BCHW, self.decoder(bottom_BL)).mean()
        return likelihood + self.kl * kl_B.mean() + self.reconstruction * error

    def prior(self, labels_B: Tensor) -> Gaussian:
        """Return N(f(y), I).

        By a product, because the gradient of picked rows has no fixed order of its sums.
        """
        classes_K = torch.arange(len(self.class_means), device=labels_B.device)
        mean_BL = (labels_B[:, None] == classes_K).to(self.class_means.dtype) @ self.class_means
        return Gaussian(mean_BL, torch.ones_like(mean_BL))

    def complete(self, normalized_BCHW: Tensor, z_BD: Tensor) -> Tensor:
        """Return the embedding, and how badly the image is reconstructed from it."""
        _, bottom_BL, _ = self.ladder.descend(self.ladder.climb(z_BD.float()), noise=False)
        error_B = squared_error(normalized_BCHW, self.decoder(bottom_BL))
        return torch.cat([z_BD, error_B[:, None].to(z_BD.dtype)], dim=1)

    @torch.no_grad()
    def fit_after(self, z_ND: Tensor, logits_NK: Tensor, labels_N: Tensor) -> None:
        """Fit the Gaussian of each class, and the scales of the two scores on the training set."""
        device = self.scale.device
        blocks = [self.top_latent(block.to(device)) for block in torch.split(z_ND, _ROWS)]
        latents_NL = torch.cat(blocks).double()
        if not torch.isfinite(latents_NL).all():
            raise PmalError("the trained network gives no finite numbers: lower training.learning_rate")
        right_N = logits_NK.argmax(dim=1) == labels_N
        self.latent_mean.copy_(self.class_means)
        self.latent_whitening.copy_(torch.eye(latents_NL.shape[1], device=device))
        for k in sorted(set(labels_N.tolist())):
            own_N = labels_N == k
            chosen_N = own_N & right_N
            chosen_NL = latents_NL[(chosen_N if int(chosen_N.sum()) > 1 else own_N).to(device)]
            self.latent_mean[k] = chosen_NL.mean(dim=0)
            self.latent_whitening[k] = whitening(chosen_NL)
        scores = (z_ND[:, -1].double().to(device), self.fit_to_classes(latents_NL))
        shares = torch.tensor(QUANTILES, dtype=torch.float64, device=device)
        for row_2, score_N in zip(self.scale, scores, strict=True):
            middle, high = score_N.quantile(shares)
            row_2.copy_(torch.stack([middle, (high - middle).clamp(min=1e-12)]))

    def fit_to_classes(self, t_BL: Tensor) -> Tensor:
        """Return each latent's squared distance to the class that fits best, float64 (B,)."""
        return latent_score(t_BL, self.latent_mean, self.latent_whitening)

    def unknown_scores(self, z_BD: Tensor, logits_BK: Tensor) -> dict[str, Tensor]:
        error_B, latent_B = z_BD[:, -1].double(), self.fit_to_classes(self.top_latent(z_BD))
        middle_2, spread_2 = self.scale.double().unbind(1)
        scaled_2B = (torch.stack([error_B, latent_B]) - middle_2[:, None]) / spread_2[:, None]
        return {"cgdl": scaled_2B.amax(dim=0), "reconstruction": error_B, "latent": latent_B}


def squared_error(images_BCHW: Tensor, decoded_BCHW: Tensor) -> Tensor:
    """Return the mean squared error over the pixels, (B,)."""
    return (images_BCHW.float() - decoded_BCHW.float()).square().flatten(1).mean(dim=1)


def _layer(features: int, width: int) -> nn.Sequential:
    # Not a leaky rectifier: the scores run in float64, for which ONNX runtimes have none.
    return nn.Sequential(nn.Linear(features, width), nn.LayerNorm(width), nn.ReLU())
