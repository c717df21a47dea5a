"""CSSR: class-specific semantic reconstruction (Huang et al., TPAMI 2022).

Each class has a small autoencoder of embeddings. An image belongs to the class whose autoencoder reconstructs
its embedding best:

    e_k = |U_k tanh(V_k z) - z|_1         logit_k = - min(gamma e_k, 100)
    loss = cross entropy(logits, y)

RCSSR (`reciprocal`) has the reciprocal: logit_k = min(gamma e_k, 100), and the autoencoder of a class
reconstructs everything else. Once trained, with y the largest logit's class, an image has three signs of
being known, each of which has mean 0 and deviation 1 on the training set:

    s1 = logit_y / a^2,  a = mean_d |z_d|     how well it is reconstructed, for the length of its embedding
    s2 = mean_d c_yd z_d                      whether it uses its class's channels, c_kd = m_kd / sum_k m_kd
    s3 = sum_de |z_d z_e| G_yde               and whether it uses them together
    score cssr = - (s1 + s2 + s3)

where m_k is the mean of |z|, and G_k that of |z_d z_e|, of the training images that are given to class k. For
RCSSR s1 is the logit alone.

What differs from the public code: the autoencoders there stand at every pixel of the last map, the softmaxes
of all pixels are averaged, as are the signs. Ours see the pooled embedding, a map of one pixel, because every
method has the same encoder and is scored from its embedding. The public code takes the mean and deviation of
the signs on augmented training images, ours on plain ones. The recipe.

B samples, K classes, D channels, L latent numbers, S signs.
"""

import math

import torch
from torch import Tensor, nn

from pmal.config import Count
from pmal.ensemble.heads import Head, HeadShape, register_method
from pmal.errors import UsageError

LARGEST_LOGIT = 100.0
"""As in the public code: beyond it an error has no gradient."""
MOST_PRODUCTS = 10**8
_ROWS = 4096


def reconstruction_errors(z_BD: Tensor, down_KLD: Tensor, up_KDL: Tensor) -> Tensor:
    """Return the absolute error of each class's autoencoder, summed over the channels, (B, K).

    >>> down, up = torch.zeros(1, 1, 2), torch.ones(1, 2, 1)
    >>> reconstruction_errors(torch.tensor([[1.0, -2.0]]), down, up)
    tensor([[3.]])
    """
    latent_KBL = (z_BD @ down_KLD.transpose(1, 2)).tanh()
    again_KBD = latent_KBL @ up_KDL.transpose(1, 2)
    return (again_KBD - z_BD).abs().sum(dim=2).T


def known_signs(
    z_BD: Tensor, logits_BK: Tensor, share_KD: Tensor, gram_KDD: Tensor, relative: bool = True
) -> Tensor:
    """Return the signs of being known, not yet scaled, (B, 3); (B, 2) without a Gram matrix.

    Args:
        z_BD: embeddings.
        logits_BK: of the classes.
        share_KD: of a channel's use that is due to each class.
        gram_KDD: mean products of channels; without numbers if they are not used.
        relative: whether the first sign is for the length of the embedding.

    >>> one = torch.ones(1, 1)
    >>> known_signs(2 * one, -one, one, 3 * one[None])
    tensor([[-0.2500,  2.0000, 12.0000]])
    """
    logit_B, class_B = logits_BK.max(dim=1)
    absolute_BD = z_BD.abs()
    if relative:
        logit_B = logit_B / absolute_BD.mean(dim=1).clamp(min=1e-12).square()
    signs = [logit_B, (share_KD[class_B] * z_BD).mean(dim=1)]
    if gram_KDD.numel():
        together_KB = ((absolute_BD @ gram_KDD) * absolute_BD).sum(dim=2)
        signs.append(together_KB.T.gather(1, class_B[:, None]).squeeze(1))
    return torch.stack(signs, dim=1)


@register_method(
    "cssr",
    paper="Huang et al., Class-Specific Semantic Reconstruction for Open Set Recognition, TPAMI 2022",
)
class SemanticReconstructionHead(Head):
    """An autoencoder of embeddings for each class.

    Args:
        latent: numbers between its two layers.
        gamma: how sharp the errors are.
        reciprocal: what a class's autoencoder reconstructs is all that is not of it (RCSSR).
        gram: whether the score uses products of channels: classes times squared channels, in numbers.
    """

    own_scores = ("cssr",)
    is_fitted_after = True
    share: Tensor
    gram: Tensor
    scale: Tensor

    def __init__(
        self,
        shape: HeadShape,
        latent: Count = 64,
        gamma: float = 0.1,
        reciprocal: bool = False,
        gram: bool = True,
    ) -> None:
        super().__init__()
        classes, features = shape.classes, shape.features
        products = classes * features**2 if gram else 0
        if products > MOST_PRODUCTS:
            many = f"the products of {features} channels in {classes} classes are {products:,} numbers"
            raise UsageError(f"method cssr: {many}: set method_options.gram=false")
        self.reciprocal, self.gamma = reciprocal, gamma
        self.down = _layers(classes, latent, features)
        self.up = _layers(classes, features, latent)
        self.register_buffer("share", torch.zeros(classes, features))
        self.register_buffer("gram", torch.zeros((classes, features, features) if gram else 0))
        self.register_buffer("scale", torch.tensor([[0.0, 1.0]] * (3 if gram else 2)))

    def forward(self, z_BD: Tensor) -> Tensor:
        # Not in mixed precision: the logits are small differences of large sums.
        with torch.autocast(z_BD.device.type, enabled=False):
            errors_BK = reconstruction_errors(z_BD.to(self.down.dtype), self.down, self.up)
            logits_BK = (self.gamma * errors_BK).clamp(max=LARGEST_LOGIT)
        return logits_BK if self.reciprocal else -logits_BK

    @torch.no_grad()
    def fit_after(self, z_ND: Tensor, logits_NK: Tensor, labels_N: Tensor) -> None:
        """Fit the use of the channels by the class that each image is given to, and the scales."""
        device = self.scale.device
        given_N = logits_NK.argmax(dim=1)
        means_KD = self.share.double().zero_()
        self.gram.zero_()
        for k in sorted(set(given_N.tolist())):
            own_MD = z_ND[given_N == k].double().abs().to(device)
            means_KD[k] = own_MD.mean(dim=0)
            if self.gram.numel():
                self.gram[k] = own_MD.T @ own_MD / len(own_MD)
        self.share.copy_(means_KD / means_KD.sum(dim=0).clamp(min=1e-12))
        blocks = zip(torch.split(z_ND, _ROWS), torch.split(logits_NK, _ROWS), strict=True)
        signs_NS = torch.cat([self._signs(z.double().to(device), x.double().to(device)) for z, x in blocks])
        spread_S = signs_NS.std(dim=0, correction=0).clamp(min=1e-12)
        self.scale.copy_(torch.stack([signs_NS.mean(dim=0), spread_S], dim=1))

    def _signs(self, z_BD: Tensor, logits_BK: Tensor) -> Tensor:
        share_KD, gram_KDD = self.share.to(z_BD.dtype), self.gram.to(z_BD.dtype)
        return known_signs(z_BD, logits_BK, share_KD, gram_KDD, relative=not self.reciprocal)

    def unknown_scores(self, z_BD: Tensor, logits_BK: Tensor) -> dict[str, Tensor]:
        middle_S, spread_S = self.scale.to(z_BD.dtype).unbind(dim=1)
        scaled_BS = (self._signs(z_BD, logits_BK) - middle_S) / spread_S
        return {"cssr": -scaled_BS.sum(dim=1)}


def _layers(classes: int, outputs: int, inputs: int) -> nn.Parameter:
    """Return a layer without bias for each class, with torch's own first weights of a linear layer."""
    bound = 1 / math.sqrt(inputs)
    return nn.Parameter(torch.empty(classes, outputs, inputs).uniform_(-bound, bound))
