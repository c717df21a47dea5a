"""Four clusters in the plane, and unknown samples between them: what a method that rejects must get right."""

import torch

from pmal.config import EncoderConfig
from pmal.ensemble.classifier import Classifier, ClassifierSpec
from pmal.ensemble.heads import HeadConfig, HeadShape, create_head
from pmal.rejection.scores import logit_score
from pmal.reporting.metrics import auroc

CENTERS = torch.tensor([[2.0, 2.0], [2.0, -2.0], [-2.0, 2.0], [-2.0, -2.0]])


def head_of(name, K=4, D=3, **options):
    """A head in float64 with points all over the place."""
    head = create_head(HeadConfig(name, options), HeadShape(D, K, 1, 28)).double()
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn(parameter.shape, dtype=torch.float64))
    return head


class Plain:
    """In the place of a classifier: embeddings are what is fed in."""

    @staticmethod
    def encoder(z_BD):
        return z_BD


def clusters(count, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 4
    return CENTERS[labels] + 0.3 * torch.randn(count, 2, generator=generator), labels


def learn(name, steps=300, views=1, **options):
    """A linear map of the plane under the method's own loss, and how well it then does on new samples."""
    torch.manual_seed(0)
    spec = ClassifierSpec(EncoderConfig("precomputed"), tuple("abcd"), 1, 2, HeadConfig(name, options))
    model = Classifier(spec)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(steps):
        x, labels = clusters(64, step)
        several = torch.cat([x + 0.01 * view for view in range(views)])
        loss = model.head.loss(model, several[:, :, None, None], labels, 0.0, None)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


@torch.no_grad()
def measure(model, place):
    """Accuracy on new samples of the clusters, and AUROC against unknown ones around a place."""
    x, labels = clusters(200, 10**6)
    unknown = torch.tensor(place) + 0.2 * torch.randn(200, 2, generator=torch.Generator().manual_seed(7))
    known_logits = model(x[:, :, None, None])
    unknown_logits = model(unknown[:, :, None, None])
    accuracy = (known_logits.argmax(1) == labels).double().mean().item()
    return accuracy, float(auroc(logit_score(known_logits), logit_score(unknown_logits)))
