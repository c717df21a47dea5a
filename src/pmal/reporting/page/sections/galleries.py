"""Sections of a run's report that show pictures: the embedding, the prototypes, the robustness."""

from typing import Any

import numpy as np

from pmal.data.samples import evenly
from pmal.reporting.page.answers import answer_name, figures, file_name, truth_name
from pmal.reporting.page.document import Figure, Gallery, Picture, Section
from pmal.reporting.page.numbers.mining_numbers import least_robust, robustness_figure, shown_classes
from pmal.reporting.page.numbers.run_numbers import Floats, Ints, rounded
from pmal.reporting.page.numbers.tsne_layout import layouts
from pmal.reporting.page.pictures import Album
from pmal.reporting.page.tested import CLASSES, Measured, Mined, RunFacts, short_name, unseen

POINTS = 1_000
"""Largest number of test images of each part in the embedding, so that t-SNE takes seconds."""
PER_ROW = 10
FEW = 10
"""Fewest images in an interval of r: with fewer, its accuracy says little."""


def embedding_section(
    tested: Measured,
    mined: Mined | None,
    prototype_spaces: list[Floats],
    facts: RunFacts,
    albums: tuple[Album, Album],
    method: str,
) -> Section:
    """Return test images and prototypes in two dimensions, before and after the optimization.

    Args:
        tested: the test images and their answers.
        mined: the training images and prototypes. None: the method has none.
        prototype_spaces: embeddings of all prototypes by the softmax and by the model, if there are any.
        facts: contents of the run's files.
        albums: of the test images, and of the training images.
        method: "t-SNE" or "PCA".
    """
    classes = shown_classes(len(facts.class_names), CLASSES)
    chosen, prototypes = _chosen_images(tested, classes), _chosen_prototypes(mined, classes)
    answered = [tested.model] if tested.softmax is None else [tested.softmax, tested.model]
    spaces = [one.z[chosen] for one in answered]
    if mined:
        spaces = [np.concatenate([z, p[prototypes]]) for z, p in zip(spaces, prototype_spaces, strict=True)]
    titles = (
        [facts.method] if tested.softmax is None else ["Before: softmax", f"After: {facts.method.upper()}"]
    )
    flat = layouts(spaces, method)
    data = _point_data(tested, mined, chosen, prototypes, classes, facts, albums)
    data["panels"] = [
        {"title": title, "x": rounded(xy[:, 0], 3), "y": rounded(xy[:, 1], 3)}
        for title, xy in zip(titles, flat, strict=True)
    ]
    lead = "Test images as the network sees them, drawn in two dimensions: images it finds alike lie close"
    lead += " together. Known classes are colored, unknown images are gray crosses"
    lead += ", prototypes are stars." if mined else "."
    caption = f"{method} of {len(chosen):,} test images. Hover or tap for the picture; the legend hides and"
    caption += " shows. By keyboard: Tab to a point, then the arrow keys go to the nearest one on that side,"
    caption += " Page Up and Page Down through all."
    if method == "PCA":
        caption += " With openTSNE installed (pip install 'pmal[report]') neighborhoods show more clearly."
    figure = Figure("embedding-plot", "scatter", data, data["label_text"], caption)
    return Section("embedding", "Embedding", lead, [figure])


def prototypes_section(mined: Mined, facts: RunFacts, album: Album) -> Section:
    """Return the prototypes of each class in the order of choice, and its least robust images."""
    blocks = []
    for k in shown_classes(len(facts.class_names), CLASSES):
        name, members = facts.class_names[k], np.flatnonzero(mined.samples.labels == k)
        of_class = np.flatnonzero((mined.prototypes.labels == k).numpy())
        chosen = [_prototype(mined, int(i), name, album) for i in of_class[: 2 * PER_ROW]]
        worst = least_robust(mined.r_N, mined.samples.ids, members, PER_ROW)
        poor = [_poor(mined, position, name, facts, album) for position in worst]
        note = f"{len(of_class)} prototypes of {len(members):,} training images"
        rows = [("Prototypes, in order of choice", chosen), (f"Smallest {mined.symbol}", poor)]
        blocks.append(Gallery(name, note, rows))
    lead = (
        "A prototype is a training image that stands for its class: independently trained networks agree on"
    )
    lead += " it (large r), and it lies far from those chosen before it (gap). The images with the smallest r"
    lead += " may be damaged, mislabeled or hard to read;"
    lead += " a name in orange is what the first classifier takes them for."
    return Section("prototypes", "Prototypes", lead, blocks)


def robustness_section(mined: Mined, facts: RunFacts, album: Album) -> Section:
    """Return the distribution of r, with the accuracy per interval and pictures along the axis."""
    classes = shown_classes(len(facts.class_names), CLASSES)
    data = robustness_figure(mined.r_N, mined.samples.labels, mined.correct_N, classes, facts.class_names)
    for group in data["groups"]:
        group["pictures"] = [
            [{"place": album.place(p), "alt": _alt(mined, p, facts)} for p in some]
            for some in group["pictures"]
        ]
    data |= {"symbol": mined.symbol, "sheet": album.name, "few": FEW}
    lead = f"{mined.symbol} says how well a training image keeps its place among the others from one"
    lead += (
        " classifier to the next. If it measures quality, the classifiers err more often where it is small:"
    )
    lead += " the accuracy in each interval shows whether they do."
    caption = "Accuracy: of this run's classifiers on the training images; hollow where there are fewer than"
    caption += f" {FEW}. Pictures stand below the interval that they lie in. Choose a class to see its own."
    label = (
        f"Distribution of {mined.symbol} of all classes and of each class, with accuracy and sample pictures"
    )
    figure = Figure("robustness-plot", "robustness", data, label, caption)
    return Section("robustness", "Robustness", lead, [figure])


def _chosen_images(tested: Measured, classes: list[int]) -> Ints:
    """Return the positions of the test images that are drawn, known ones first."""
    known = np.flatnonzero(np.isin(tested.known.labels, classes))
    parts = [known[evenly(len(known), POINTS)]]
    if tested.unknown is not None:
        parts.append(len(tested.known) + evenly(len(tested.unknown), POINTS))
    return np.concatenate(parts)


def _chosen_prototypes(mined: Mined | None, classes: list[int]) -> Ints:
    if mined is None:
        return np.zeros(0, dtype=np.int64)
    labels, rank = mined.prototypes.labels.numpy(), mined.prototypes.rank.numpy()
    # The first choices of every class, so few that the picture stays readable.
    return np.flatnonzero(np.isin(labels, classes) & (rank < max(1, 400 // max(1, len(classes)))))


def _point_data(
    tested: Measured,
    mined: Mined | None,
    chosen: Ints,
    prototypes: Ints,
    classes: list[int],
    facts: RunFacts,
    albums: tuple[Album, Album],
) -> dict[str, Any]:
    column, test_album, train_album = {k: i for i, k in enumerate(classes)}, *albums
    known, unknown = tested.known, tested.unknown
    data: dict[str, Any] = {"classes": [facts.class_names[k] for k in classes]}
    rows = []
    for i in chosen.tolist():
        inside = i < len(known)
        label = column[int(known.labels[i])] if inside else -1
        rows.append(
            (0 if inside else 1, label, test_album.place(i), test_album.name, _about(tested, i, facts))
        )
    for p in prototypes.tolist() if mined else ():
        assert mined is not None
        place = train_album.place(mined.position_of[int(mined.prototypes.ids[p])])
        label = column[int(mined.prototypes.labels[p])]
        rows.append((2, label, place, train_album.name, _about_prototype(mined, p, facts)))
    for name, values in zip(
        ("kind", "label", "place", "sheet", "text"), zip(*rows, strict=True), strict=True
    ):
        data[name] = list(values)
    counts = f"{len(known):,} known" + (f" and {len(unknown):,} unknown" if unknown is not None else "")
    data["label_text"] = f"embedding of {counts} test images in two dimensions"
    return data


def _about(tested: Measured, i: int, facts: RunFacts) -> list[str]:
    answer = f"nearest class: {answer_name(tested, i, facts)}"
    if tested.decided is not None:
        answer = f"answer: {', '.join([answer_name(tested, i, facts), *figures(tested, i)])}"
    return [truth_name(tested, i, facts), answer, file_name(tested, i)]


def _about_prototype(mined: Mined, p: int, facts: RunFacts) -> list[str]:
    found = mined.prototypes
    position = mined.position_of[int(found.ids[p])]
    title = f"{facts.class_names[int(found.labels[p])]}, prototype {int(found.rank[p]) + 1}"
    figures = f"{mined.symbol} {float(found.r[p]):.2f}, gap {float(found.gap[p]):.3g}"
    return [title, figures, short_name(mined.samples.name(position))]


def _prototype(mined: Mined, i: int, name: str, album: Album) -> Picture:
    found = mined.prototypes
    position, r, gap = mined.position_of[int(found.ids[i])], float(found.r[i]), float(found.gap[i])
    alt = f"prototype {int(found.rank[i]) + 1} of class {name}: {short_name(mined.samples.name(position))}"
    place = album.place(position)
    lines = [f"{mined.symbol} {r:.2f}", f"gap {gap:.{0 if gap >= 9.95 else 1}f}"]
    return Picture(album.name, place, alt, [*unseen(place, mined.samples.name(position)), *lines])


def _poor(mined: Mined, position: int, name: str, facts: RunFacts, album: Album) -> Picture:
    taken = facts.class_names[mined.predicted_N[position]]
    place = album.place(position)
    lines = [*unseen(place, mined.samples.name(position)), f"{mined.symbol} {mined.r_N[position]:.2f}"]
    wrong = mined.predicted_N[position] != mined.samples.labels[position]
    alt = f"image of class {name} with small {mined.symbol}: {short_name(mined.samples.name(position))}"
    alt += f", taken for {taken}" if wrong else ""
    return Picture(
        album.name,
        place,
        alt,
        [*lines, f"→ {taken}"] if wrong else lines,
        "wrong" if wrong else "",
    )


def _alt(mined: Mined, position: int, facts: RunFacts) -> str:
    name = facts.class_names[mined.samples.labels[position]]
    return (
        f"class {name}, {mined.symbol} {mined.r_N[position]:.2f}, {short_name(mined.samples.name(position))}"
    )
