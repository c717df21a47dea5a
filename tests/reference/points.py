"""The equations of CPN, RPL, RPL++ and ARPL as loops over samples, classes and points, in float64."""

import math
from collections.abc import Sequence

Vector = Sequence[float]


def square(z: Vector, p: Vector) -> float:
    """|z - p|^2"""
    return math.fsum((a - b) ** 2 for a, b in zip(z, p, strict=True))


def dot(z: Vector, p: Vector) -> float:
    return math.fsum(a * b for a, b in zip(z, p, strict=True))


def softmax(logits: Vector) -> list[float]:
    powers = [math.exp(logit - max(logits)) for logit in logits]
    return [power / math.fsum(powers) for power in powers]


def cross_entropy(logits: Sequence[Vector], labels: Sequence[int]) -> float:
    return mean([-math.log(softmax(row)[y]) for row, y in zip(logits, labels, strict=True)])


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def cpn(z, prototypes, labels, gamma, weight):
    logits = [[-gamma * min(square(x, m) for m in of_class) for of_class in prototypes] for x in z]
    pulled = [min(square(x, m) for m in prototypes[y]) for x, y in zip(z, labels, strict=True)]
    return logits, cross_entropy(logits, labels) + weight * mean(pulled)


def shells(z, points, radii, labels):
    """How far from the radius of their class the distances of the samples to its points are."""
    return [
        mean([(square(x, p) / len(x) - radii[y]) ** 2 for p in points[y]])
        for x, y in zip(z, labels, strict=True)
    ]


def rpl(z, points, radii, labels, gamma, weight):
    logits = [[gamma * mean([square(x, p) for p in of_class]) for of_class in points] for x in z]
    return logits, cross_entropy(logits, labels) + weight * mean(shells(z, points, radii, labels))


def rpl_plus(z, points, radii, prototypes, labels, gamma, weight):
    logits = [
        [
            gamma * (mean([square(x, p) for p in far]) - min(square(x, m) for m in near)) / 2
            for far, near in zip(points, prototypes, strict=True)
        ]
        for x in z
    ]
    pulled = [min(square(x, m) for m in prototypes[y]) / len(x) for x, y in zip(z, labels, strict=True)]
    bound = mean(shells(z, points, radii, labels)) + mean(pulled)
    return logits, cross_entropy(logits, labels) + weight * bound


def arpl(z, points, radius, labels, temperature, weight, margin):
    logits = [[square(x, p) / len(x) - dot(x, p) for p in points] for x in z]
    sharp = [[logit / temperature for logit in row] for row in logits]
    own = [square(x, points[y]) / len(x) for x, y in zip(z, labels, strict=True)]
    outside = [max(d - radius + margin, 0.0) for d in own]
    return logits, cross_entropy(sharp, labels) + weight * mean(outside)


def confusion(z, points):
    """exp(-H), H the mean entropy of the softmax over the distances."""
    shares = [softmax([square(x, p) / len(x) for p in points]) for x in z]
    return math.exp(mean([math.fsum(p * math.log(p) for p in row) for row in shares]))


def adversarial(real, fake):
    """The losses of discriminator and generator, of the discriminator's logits."""

    def sigmoid(x):
        return 1 / (1 + math.exp(-x))

    judged = mean([-math.log(sigmoid(x)) for x in real]) + mean([-math.log(1 - sigmoid(x)) for x in fake])
    return judged, mean([-math.log(sigmoid(x)) for x in fake])
