"""OpenHybrid: a classifier and a density model that share an encoder (Zhang et al., ECCV 2020).

    loss = cross entropy(W z + b, y) + weight (-log p(u) / D)        u = sqrt(D) z / |z|
    score density = -log p(u)

p is a normalizing flow, an invertible map f of u to numbers of a simple distribution p0, trained together
with the classifier. The gradient of the density reaches the encoder times `share`.

    log p(u) = log p0(f(u)) + log |det df/du|

f standardizes each channel, then alternates affine couplings (RealNVP, Dinh et al., ICLR 2017), which move
one half of the channels given the other half:

    b' = b exp(s(a)) + t(a)        log |det| = sum s(a)        |s| < 2

What differs from the paper:
- There the density is that of z itself (`unit` = false). Its length defeats that: unknown images have shorter
  embeddings than known ones, augmented views shorter ones than the plain images of the test, and the density
  is learned from the views. So known test images lie outside of what was learned, and unknown ones inside it:
  on CIFAR-10 the AUROC is below 50, and Gaussians on the same embeddings fare no better. More noise, more
  layers or a component for each class changed little. Flows on embeddings of unit length are also what Cook
  et al. (arXiv 2402.06537) recommend.
- There all of the density's gradient reaches the encoder (`share` = 1). With these flows the encoder then
  learns embeddings that are easy to model, one simple cloud, and unknown images fall into it: on the embedded
  sample the density rejects far worse than with `share` = 0, which is the default, and longer training does
  not help. Both stand in the ledger (docs/benchmark.md).
- Its flow is a residual flow (i-ResNet blocks, and a series for the determinant). Couplings have their
  determinant in closed form, which a captured training step needs.
- p0 is logistic (as in NICE, Dinh et al., 2015) and not normal, and the couplings' networks normalize their
  layers. The gradient of a normal density grows with the distance: under the rate that all methods share, and
  without the normalization, the loss was infinite or NaN within 150 steps.
- Nothing in a joint loss keeps the encoder from shrinking z to a few points, where every density is
  infinite; and a rectified channel that is always zero has no density at all. So the density is that of u
  standardized by its batch statistics (running ones once trained), and in training Gaussian noise of `noise`
  standard deviations is added: what is smaller than the noise gains nothing by shrinking further.
- The density is divided by D, so that its weight means the same for every encoder.

B samples, K classes, D channels, H of them in one half.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, logsigmoid

from pmal.ensemble.heads import Head, HeadShape, register_method
from pmal.errors import UsageError

LARGEST_LOG_SCALE = 2.0
SMALLEST_SQUARE = 1e-6


class Coupling(nn.Module):
    """Scales and shifts one half of the channels, by what the other half says. It begins as the identity."""

    def __init__(self, features: int, width: int, first: bool) -> None:
        super().__init__()
        self.left, self.first = features // 2, first
        given = self.left if first else features - self.left
        self.net = nn.Sequential(
            *_layer(given, width),
            *_layer(width, width),
            nn.Linear(width, 2 * (features - given)),
        )
        for parameter in self.net[-1].parameters():
            nn.init.zeros_(parameter)

    def forward(self, x_BD: Tensor) -> tuple[Tensor, Tensor]:
        """Return the moved channels, and log |det| (B,)."""
        given_BH, moved_BH, log_scale_BH, shift_BH = self.plan(x_BD)
        new_BH = moved_BH * log_scale_BH.exp() + shift_BH
        both = [given_BH, new_BH] if self.first else [new_BH, given_BH]
        return torch.cat(both, dim=1), log_scale_BH.sum(dim=1)

    def plan(self, x_BD: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return both halves, and the scale and shift that the given one makes for the other."""
        left_BH, right_BH = x_BD[:, : self.left], x_BD[:, self.left :]
        given_BH, moved_BH = (left_BH, right_BH) if self.first else (right_BH, left_BH)
        raw_BH, shift_BH = self.net(given_BH).chunk(2, dim=1)
        log_scale_BH = LARGEST_LOG_SCALE * torch.tanh(raw_BH / LARGEST_LOG_SCALE)
        return given_BH, moved_BH, log_scale_BH, shift_BH


class Flow(nn.Module):
    """Couplings one after another; each half of the channels is moved by every second one."""

    def __init__(self, features: int, layers: int, width: int) -> None:
        super().__init__()
        self.couplings = nn.ModuleList(Coupling(features, width, i % 2 == 0) for i in range(layers))

    def forward(self, x_BD: Tensor) -> tuple[Tensor, Tensor]:
        """Return the numbers of p0, and log |det| (B,)."""
        log_det_B = x_BD.new_zeros(x_BD.shape[0])
        for coupling in self.couplings:
            x_BD, change_B = coupling(x_BD)
            log_det_B = log_det_B + change_B
        return x_BD, log_det_B

    def log_density(self, x_BD: Tensor) -> Tensor:
        """Return log p(x) (B,)."""
        simple_BD, log_det_B = self(x_BD)
        log_density_B: Tensor = log_det_B + (2 * logsigmoid(simple_BD) - simple_BD).sum(dim=1)
        return log_density_B


@register_method("openhybrid", paper="Zhang et al., Hybrid Models for Open Set Recognition, ECCV 2020")
class HybridHead(Head):
    """A linear layer and a flow that share an encoder.

    Args:
        weight: of the density.
        layers: of the flow.
        width: of the flow.
        noise: in standard deviations of a channel.
        share: how much of the density's gradient reaches the encoder. 1: all of it, as in the paper. 0: none.
        unit: the density is that of the embedding's direction; else that of the embedding, as in the paper.
    """

    own_scores = ("density",)
    length: Tensor | None
    """The length of what the flow sees: a channel is then about 1, whatever their number is."""

    def __init__(
        self,
        shape: HeadShape,
        weight: float = 1.0,
        layers: int = 8,
        width: int = 128,
        noise: float = 0.03,
        share: float = 0.0,
        unit: bool = True,
    ) -> None:
        super().__init__()
        if shape.features < 2 or layers < 2:
            found = f"here are {shape.features} and {layers}"
            raise UsageError(f"method openhybrid needs 2 or more features and layers of its flow: {found}")
        self.weight, self.noise, self.share = weight, noise, share
        self.classifier = nn.Linear(shape.features, shape.classes, bias=shape.bias)
        self.standard = nn.BatchNorm1d(shape.features, affine=False)
        self.flow = Flow(shape.features, layers, width)
        # A tensor, so that the weights of one cannot be taken for those of the other.
        self.register_buffer("length", torch.tensor(math.sqrt(shape.features)) if unit else None)

    def forward(self, z_BD: Tensor) -> Tensor:
        logits_BK: Tensor = self.classifier(z_BD)
        return logits_BK

    def known_loss(self, z_BD: Tensor, labels_B: Tensor, smoothing: float) -> Tensor:
        if len(labels_B) < 2:
            raise UsageError("method openhybrid needs 2 or more images in a batch: raise training.batch_size")
        likelihood = cross_entropy(self(z_BD), labels_B, label_smoothing=smoothing)
        # The same numbers; the gradient of the density reaches the encoder in part.
        given_BD = self.share * z_BD + (1 - self.share) * z_BD.detach()
        density = self.log_density(given_BD, self.noise).mean()
        loss: Tensor = likelihood - self.weight / z_BD.shape[1] * density
        return loss

    def log_density(self, z_BD: Tensor, noise: float = 0.0) -> Tensor:
        """Return log p of the standardized direction (B,).

        In the precision of the weights even if others mix.
        """
        with torch.autocast(z_BD.device.type, enabled=False):
            z_BD = z_BD.to(self.classifier.weight.dtype)
            x_BD = self.standard(z_BD if self.length is None else self.length * direction(z_BD))
            if noise:
                x_BD = x_BD + noise * torch.randn_like(x_BD)
            log_density_B: Tensor = self.flow.log_density(x_BD)
        return log_density_B

    def unknown_scores(self, z_BD: Tensor, logits_BK: Tensor) -> dict[str, Tensor]:
        return {"density": -self.log_density(z_BD)}


def direction(z_BD: Tensor) -> Tensor:
    """Return z / |z|. The gradient stays bounded for an embedding of zeros, which rectified ones can be."""
    return z_BD * torch.rsqrt(z_BD.square().sum(dim=1, keepdim=True) + SMALLEST_SQUARE)


def _layer(features: int, width: int) -> list[nn.Module]:
    # Normalized, so that the last layer sees bounded numbers, however far out the embedding is.
    return [nn.Linear(features, width), nn.LayerNorm(width), nn.ReLU()]
