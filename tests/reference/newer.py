"""The equations of ConOSR, SpHOR and CSSR as loops over samples, classes and channels, in float64."""

import math

from tests.reference.points import dot, mean


def unit(v):
    length = math.sqrt(dot(v, v))
    return [x / length for x in v]


def soft_targets(labels, classes, smoothing):
    return [[1 - smoothing if k == y else smoothing / (classes - 1) for k in range(classes)] for y in labels]


def mixed(rows, share):
    """Every row with the next one, the last with the first."""
    following = [*rows[1:], rows[0]]
    return [
        [share * a + (1 - share) * b for a, b in zip(x, y, strict=True)]
        for x, y in zip(rows, following, strict=True)
    ]


def conosr(projected, targets, temperature):
    u, t = [unit(x) for x in projected], [unit(x) for x in targets]
    losses = []
    for i in range(len(u)):
        others = [j for j in range(len(u)) if j != i]
        total = math.fsum(math.exp(dot(u[i], u[a]) / temperature) for a in others)
        weights = [dot(t[i], t[j]) for j in others]
        logs = [dot(u[i], u[j]) / temperature - math.log(total) for j in others]
        losses.append(-dot(weights, logs) / math.fsum(weights))
    return mean(losses)


def sphor(projected, prototypes, targets, temperature):
    losses = []
    for x, target in zip(projected, targets, strict=True):
        powers = [math.exp(dot(unit(x), m) / temperature) for m in prototypes]
        losses.append(-dot(target, [math.log(p / math.fsum(powers)) for p in powers]))
    return mean(losses)


def cssr_logits(z, down, up, gamma, reciprocal):
    rows = []
    for x in z:
        errors = []
        for first, second in zip(down, up, strict=True):
            latent = [math.tanh(dot(row, x)) for row in first]
            errors.append(math.fsum(abs(dot(row, latent) - v) for row, v in zip(second, x, strict=True)))
        rows.append([min(gamma * e, 100) if reciprocal else -min(gamma * e, 100) for e in errors])
    return rows


def cssr_scores(train, train_logits, z, logits, reciprocal):
    """The score of new embeddings, with statistics of the training set by the classes that it is given."""
    classes, channels = len(logits[0]), len(z[0])
    given = [row.index(max(row)) for row in train_logits]
    used = [[0.0] * channels for _ in range(classes)]
    gram = [[[0.0] * channels for _ in range(channels)] for _ in range(classes)]
    for k in range(classes):
        own = [x for x, y in zip(train, given, strict=True) if y == k]
        for d in range(channels if own else 0):
            used[k][d] = mean([abs(x[d]) for x in own])
            for e in range(channels):
                gram[k][d][e] = mean([abs(x[d] * x[e]) for x in own])
    sums = [math.fsum(used[k][d] for k in range(classes)) for d in range(channels)]

    def signs(x, row):
        y = row.index(max(row))
        length = mean([abs(v) for v in x])
        first = row[y] if reciprocal else row[y] / length / length
        second = mean([used[y][d] / sums[d] * x[d] for d in range(channels)])
        pairs = [(d, e) for d in range(channels) for e in range(channels)]
        return first, second, math.fsum(abs(x[d] * x[e]) * gram[y][d][e] for d, e in pairs)

    found = list(zip(*[signs(x, row) for x, row in zip(train, train_logits, strict=True)], strict=True))
    middles = [mean(values) for values in found]
    spreads = [
        math.sqrt(mean([(v - m) ** 2 for v in values])) for values, m in zip(found, middles, strict=True)
    ]
    rows = [signs(x, row) for x, row in zip(z, logits, strict=True)]
    return [-math.fsum((s - m) / d for s, m, d in zip(row, middles, spreads, strict=True)) for row in rows]
