"""ARPL and ARPL+CS (Chen et al., Adversarial Reciprocal Points Learning for Open Set Recognition, 2021).

Each class has one reciprocal point p_k, which stands for everything that is not of the class, and from which
its samples are far both in position and in direction:

    d_k = |z - p_k|^2 / D              logit_k = d_k - z . p_k
    loss = cross entropy(logits / temperature, y) + weight max(d_y - R + margin, 0)

The second term, the adversarial margin, keeps the samples within a learned radius R of the point that the
first term drives them from. An image is rejected by its largest logit, the score `logit`.

ARPL+CS also trains a generator of confusing samples (`confusing_samples.py`): images that are taken for
real by a discriminator, and are equally far from all reciprocal points. Classifier and generator minimize

    beta exp(-mean H),    H the entropy of softmax(d_1, ..., d_K) of a generated image

so that generated images come near to the open space, and the classifier leaves them there.

What differs from the paper: the margin of 1 is from the public code; the recipe is the one of all other
methods. In ARPL+CS, one backward pass serves classifier, generator and discriminator. The public code updates
them one after the other, draws new noise for the classifier, and goes on with an epoch without generated
images. It has a second set of batch-norm layers for generated images; here they are normalized by their own
batch as well, and leave no trace in the running statistics, but share the layers' scale and shift.

B samples, K classes, D channels.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pmal.baselines.confusing_samples import ConfusingSamples, embed_apart
from pmal.baselines.cpn import products, random_points, squared_distances
from pmal.config import Positive
from pmal.ensemble.classifier import Classifier
from pmal.ensemble.heads import Head, HeadShape, register_method

PAPER = "Chen et al., Adversarial Reciprocal Points Learning for Open Set Recognition, TPAMI 2021"


@register_method("arpl", paper=PAPER)
class AdversarialPointsHead(Head):
    """One reciprocal point per class; the farthest class decides.

    Args:
        temperature: divides the logits in the cross entropy.
        weight: of the adversarial margin.
    """

    def __init__(
        self, shape: HeadShape, temperature: Positive = 1.0, weight: float = 0.1, margin: float = 1.0
    ) -> None:
        super().__init__()
        self.temperature, self.weight, self.margin = temperature, weight, margin
        self.points = random_points(shape)
        self.radius = nn.Parameter(torch.zeros(()))

    def forward(self, z_BD: Tensor) -> Tensor:
        return self.distances(z_BD) - products(z_BD, self.points[:, 0])

    def distances(self, z_BD: Tensor) -> Tensor:
        """Return the squared distance of each sample to each reciprocal point, over D, (B, K)."""
        return squared_distances(z_BD, self.points)[:, :, 0] / z_BD.shape[1]

    def known_loss(self, z_BD: Tensor, labels_B: Tensor, smoothing: float) -> Tensor:
        """Return the loss of embedded images of the known classes."""
        logits_BK = self(z_BD) / self.temperature
        own_B = self.distances(z_BD).gather(1, labels_B[:, None])
        outside_B = (own_B - self.radius + self.margin).relu()
        return cross_entropy(logits_BK, labels_B, label_smoothing=smoothing) + self.weight * outside_B.mean()


@register_method("arpl+cs", paper=PAPER, passes=2)
class ConfusedPointsHead(AdversarialPointsHead):
    """ARPL with a generator of confusing samples.

    Args:
        beta: weight of the entropy.
        noise: numbers that an image is generated from.
        width: channels of the largest maps of generator and discriminator.
    """

    def __init__(
        self,
        shape: HeadShape,
        temperature: Positive = 1.0,
        weight: float = 0.1,
        margin: float = 1.0,
        beta: float = 0.1,
        noise: int = 100,
        width: int = 64,
    ) -> None:
        super().__init__(shape, temperature, weight, margin)
        self.beta, self.noise, self.width = beta, noise, width

    def training_parts(self, model: Classifier) -> ConfusingSamples:
        spec = model.spec
        return ConfusingSamples(spec.channels, spec.image_size, self.noise, self.width)

    def confusion(self, z_BD: Tensor) -> Tensor:
        """Return exp(-entropy) of embedded generated images: 1/K if all points are equally far, 1 at most."""
        logs_BK = self.distances(z_BD).log_softmax(dim=1)
        return (logs_BK.exp() * logs_BK).sum(dim=1).mean().exp()

    def loss(
        self,
        model: Classifier,
        views_BCHW: Tensor,
        labels_B: Tensor,
        smoothing: float,
        parts: nn.Module | None,
    ) -> Tensor:
        assert isinstance(parts, ConfusingSamples)
        fakes_BCHW = parts.generate(len(views_BCHW), model.mean, model.std)
        known = super().loss(model, views_BCHW, labels_B, smoothing, None)
        confusion = self.confusion(embed_apart(model.encoder, fakes_BCHW))
        return known + self.beta * confusion + parts.adversarial_loss(views_BCHW, fakes_BCHW)
