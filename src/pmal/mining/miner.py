"""From embeddings to prototypes: the quality of all samples, candidates per class, a diverse few of them."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pmal._runtime.seeds import stream
from pmal.config import MiningConfig
from pmal.errors import DataError, unknown_name
from pmal.geometry.logits import centered_logits
from pmal.geometry.robustness import check_temperature
from pmal.geometry.topology import TOPOLOGIES
from pmal.mining._arrays import (
    Space,
    SpaceLike,
    Values,
    check_count,
    check_ids,
    check_labels,
    check_log_quality,
    check_names,
    check_points,
    check_spaces,
)
from pmal.mining.candidates import best_first, check_epsilon, select_candidates
from pmal.mining.diversity import DIVERSITY_RULES, gaps_best_first
from pmal.mining.prototypes import PrototypeSet
from pmal.mining.quality import QUALITY_RULES, QualityOptions
from pmal.mining.sample_quality import SampleQuality


def mine_prototypes(
    spaces: Sequence[SpaceLike],
    labels: Values,
    *,
    epsilon: float = 0.7,
    per_class: int = 10,
    quality: str = "topology",
    diversity: str = "gap",
    ids: Values | None = None,
    class_names: Sequence[str] | None = None,
    files: Sequence[str] | None = None,
    topology: str = "unit",
    temperature: str | float = "median",
    precision: str = "exact",
    landmarks: int | None = None,
    passes: int = 32,
    seed: int = 0,
    device: str | torch.device | None = None,
    report: Callable[[int], None] | None = None,
) -> PrototypeSet:
    """Return the prototypes of every class of a head, from the embeddings of its training samples.

    The result does not depend on the order of the samples: they are first sorted by `ids`, which also break
    all ties. A class with fewer samples than `per_class` gives them all, and one without samples gives none.

    Args:
        spaces: one (embeddings (N, D), class weights (K, D)) or (embeddings, weights, bias (K,)) per
            classifier: at least two for the qualities topology and ensemble, one for the others. Biases
            change probabilities and logits, but no distance. Distances between candidates are those of
            space 0.
        labels: class of each sample, (N,).
        epsilon: candidates have r of at least this share of the largest r of their class.
        per_class: largest number of prototypes of a class.
        quality: topology (the paper's), probability, ensemble, mc-dropout, logit or none.
        diversity: gap (the paper's Algorithm 1), random, kmeans, kcenter or none.
        ids: id of each sample, (N,); by default its position.
        class_names: names of the K classes, kept with the prototypes.
        files: file of each sample, kept with the prototypes.
        topology: as in `topology_robustness`.
        temperature: as in `topology_robustness`.
        precision: as in `topology_robustness`.
        landmarks: as in `topology_robustness`.
        passes: number of passes of mc-dropout.
        seed: seeds everything random.
        device: as in `topology_robustness`.
        report: as in `topology_robustness`.

    Returns:
        The prototypes, by class and rank, with the r and the gap of each.

    Raises:
        UsageError: an option or a shape is wrong.
        DataError: a number, label or id is not valid.

    >>> z = torch.tensor([[2.0, 0.0], [2.1, 0.1], [3.0, 0.2], [0.0, 2.0], [0.1, 3.0]])
    >>> mined = mine_prototypes([(z, torch.eye(2))], [0, 0, 0, 1, 1], quality="probability", per_class=2)
    >>> mined.table().tolist()
    [[2, 0], [4, 3]]
    """
    check_temperature(temperature)
    settings = MiningConfig(
        per_class=per_class,
        epsilon=epsilon,
        quality=quality,
        diversity=diversity,
        topology=topology,
        temperature=0.0 if isinstance(temperature, str) else float(temperature),
        precision=precision,
        landmarks=landmarks or 0,
    )
    options = QualityOptions(settings, seed, passes, device, report)
    return mine_spaces(spaces, labels, options, ids=ids, class_names=class_names, files=files)[0]


def mine_spaces(
    spaces: Sequence[SpaceLike],
    labels: Values,
    options: QualityOptions,
    *,
    ids: Values | None = None,
    class_names: Sequence[str] | None = None,
    files: Sequence[str] | None = None,
) -> tuple[PrototypeSet, SampleQuality]:
    """Return the prototypes as `mine_prototypes` does, and the quality of every sample."""
    checked = check_spaces(spaces)
    # Before measuring the quality, which may take hours.
    check_names(files, len(checked[0].z), "files")
    check_names(class_names, len(checked[0].weight), "class_names")
    quality = rate_spaces(checked, labels, options, ids=ids)
    named = {"class_names": class_names, "files": files}
    return mine_rated(checked[0], labels, quality, options, ids=ids, **named), quality


def rate_spaces(
    spaces: Sequence[SpaceLike], labels: Values, options: QualityOptions, *, ids: Values | None = None
) -> SampleQuality:
    """Return the quality of every sample by the rule of the options, by default the robustness r."""
    check_settings(options.settings)
    sorted_spaces, labels_N, ids_N, _ = _by_id(check_spaces(spaces), labels, ids)
    log_N = QUALITY_RULES[options.settings.quality](sorted_spaces, labels_N, options)
    return SampleQuality(ids_N, log_N, options.settings.quality)


def mine_rated(
    space: SpaceLike,
    labels: Values,
    quality: SampleQuality,
    options: QualityOptions,
    *,
    ids: Values | None = None,
    class_names: Sequence[str] | None = None,
    files: Sequence[str] | None = None,
) -> PrototypeSet:
    """Return the prototypes of every class, from the samples' quality and their positions in one space.

    Raises:
        DataError: the quality is that of other samples.
    """
    [first], labels_N, ids_N, order = _by_id(check_spaces([space]), labels, ids)
    log_N = quality.of(ids_N)
    if log_N is None:
        raise DataError("the quality is that of other samples: measure it again")
    return mine(
        log_N,
        centered_logits(first.z, first.weight),
        labels_N,
        options.settings,
        num_classes=len(first.weight),
        ids=ids_N,
        class_names=class_names,
        files=None if files is None else [files[i] for i in order.tolist()],
        seed=options.seed,
    )


def mine(
    log_quality: Values,
    points: Values,
    labels: Values,
    settings: MiningConfig,
    *,
    num_classes: int,
    ids: Values | None = None,
    class_names: Sequence[str] | None = None,
    files: Sequence[str] | None = None,
    seed: int = 0,
) -> PrototypeSet:
    """Return the prototypes of every class, for any quality (as a log, larger = better) and any points.

    Distances between candidates are those of the points (N, R). The names of the K classes and the file of
    each sample are kept with the prototypes.

    >>> two = MiningConfig(per_class=2)
    >>> mined = mine([0.0, -0.1, -0.2], [[0.0], [0.1], [3.0]], [0, 0, 0], two, num_classes=1)
    >>> mined.ids.tolist(), mined.gap.tolist()
    ([0, 2], [3.0, 2.9])
    """
    check_settings(settings)
    check_count(num_classes, "num_classes")
    log_N = check_log_quality(log_quality, "quality")
    points_NR = check_points(points, len(log_N))
    labels_N = check_labels(labels, len(log_N), num_classes)
    ids_N = check_ids(ids, len(log_N))
    check_names(files, len(log_N), "files")
    check_names(class_names, num_classes, "class_names")

    candidates = _candidates(log_N, labels_N, ids_N, settings)
    ends = torch.bincount(labels_N[candidates], minlength=num_classes).cumsum(0)[:-1]
    found, gap, rank = _filter(candidates.tensor_split(ends.tolist()), points_NR, settings, seed)
    return PrototypeSet(
        ids=ids_N[found],
        labels=labels_N[found],
        log_r=log_N[found],
        gap=gap,
        rank=rank,
        num_classes=num_classes,
        class_names=None if class_names is None else tuple(class_names),
        files=None if files is None else tuple(files[i] for i in found.tolist()),
    )


def _candidates(log_N: Tensor, labels_N: Tensor, ids_N: Tensor, settings: MiningConfig) -> Tensor:
    """Return the positions of all candidates, by class and best first; of equal ones the smaller id first."""
    by_id = ids_N.argsort()
    log_sorted, labels_sorted = log_N[by_id], labels_N[by_id]
    keep = select_candidates(log_sorted, labels_sorted, epsilon=settings.epsilon, at_least=settings.per_class)
    order = best_first(log_sorted, labels_sorted)
    return by_id[order[keep[order]]]


def _filter(
    classes: Sequence[Tensor], points_NR: Tensor, settings: MiningConfig, seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return positions, gaps and ranks of the prototypes, from the positions of each class's candidates."""
    rule = DIVERSITY_RULES[settings.diversity]
    found, gaps, ranks = [], [], []
    for label, positions in enumerate(classes):
        points_MR = points_NR[positions.to(points_NR.device)]
        gaps_M, taken = gaps_best_first(points_MR), positions[:0]
        if len(positions):
            taken = rule(points_MR, gaps_M, settings.per_class, stream(seed, "diversity", label))
        found.append(positions[taken])
        gaps.append(gaps_M[taken])
        ranks.append(torch.arange(len(taken)))
    return torch.cat(found), torch.cat(gaps), torch.cat(ranks)


def check_settings(settings: MiningConfig) -> None:
    """Reject rules that do not exist, before the work that precedes mining."""
    check_epsilon(settings.epsilon)
    for kind, name, valid in (
        ("quality", settings.quality, QUALITY_RULES),
        ("diversity", settings.diversity, DIVERSITY_RULES),
        ("topology", settings.topology, TOPOLOGIES),
    ):
        if name not in valid:
            raise unknown_name(kind, name, valid)


def _by_id(
    spaces: list[Space], labels: Values, ids: Values | None
) -> tuple[list[Space], Tensor, Tensor, Tensor]:
    """Return spaces, labels and ids in the order of the ids, and that order."""
    count, num_classes = len(spaces[0].z), len(spaces[0].weight)
    labels_N, ids_N = check_labels(labels, count, num_classes), check_ids(ids, count)
    order = ids_N.argsort()
    if not torch.equal(order, torch.arange(count)):
        spaces = [space._replace(z=space.z[order.to(space.z.device)]) for space in spaces]
    return spaces, labels_N[order], ids_N[order], order
