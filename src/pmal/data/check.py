"""Is a data set what it should be? Counts, sizes, unreadable images, equal images in different classes."""

import hashlib
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pmal._runtime.progress import Display
from pmal.data.samples import BadImage, Samples, Source

LISTED = 20


def check_source(source: Source, display: Display) -> dict[str, Any]:
    """Read every image once. The result is plain JSON."""
    parts = {"train": source.train, "test": source.test, "foreign": source.foreign}
    checked = {name: _check_part(name, part, display) for name, part in parts.items() if part is not None}
    return {"source": source.name, "parts": checked}


def describe_check(found: dict[str, Any]) -> str:
    """The result for people."""
    lines = [f"{found['source']}:"]
    for name, part in found["parts"].items():
        counts = list(part["per_class"].values())
        sizes = ", ".join(f"{size} ({count:,})" for size, count in list(part["sizes"].items())[:4])
        more = len(part["sizes"]) - 4
        lines += [
            f"  {name}: {part['total']:,} images, {len(counts)} classes",
            f"    images per class: {min(counts):,} to {max(counts):,}",
            f"    sizes: {sizes}" + (f" and {more} more" if more > 0 else ""),
            f"    unreadable: {len(part['unreadable'])}",
            *(f"      {bad['name']}: {bad['reason']}" for bad in part["unreadable"][:LISTED]),
            f"    equal images in different classes: {len(part['conflicts'])}",
            *(f"      {_conflict_line(group)}" for group in part["conflicts"][:LISTED]),
        ]
    return "\n".join(lines)


def _check_part(name: str, samples: Samples, display: Display) -> dict[str, Any]:
    sizes: Counter[str] = Counter()
    unreadable = []
    positions_by_digest: defaultdict[bytes, list[int]] = defaultdict(list)
    with display.stage(f"checking {name}", len(samples), "images") as advance, ThreadPoolExecutor() as pool:
        for position, (size, digest, reason) in enumerate(
            pool.map(lambda i: _look(samples, i), range(len(samples)))
        ):
            advance(1)
            if reason:
                where = {"id": int(samples.ids[position]), "name": samples.name(position)}
                unreadable.append({**where, "reason": reason})
            else:
                sizes[size] += 1
                positions_by_digest[digest].append(position)
    per_class = Counter(samples.labels.tolist())
    return {
        "total": len(samples),
        "per_class": {name: per_class[k] for k, name in enumerate(samples.class_names)},
        "sizes": dict(sizes.most_common()),
        "unreadable": unreadable,
        "conflicts": [
            [{"name": samples.name(i), "class": samples.class_names[samples.labels[i]]} for i in group]
            for group in positions_by_digest.values()
            if len({int(samples.labels[i]) for i in group}) > 1
        ],
    }


def _look(samples: Samples, position: int) -> tuple[str, bytes, str]:
    try:
        pixels = samples.read(position)
    except BadImage as error:
        return "", b"", str(error)
    height, width, channels = pixels.shape
    shape = f"{width}x{height}x{channels}"
    return shape, hashlib.sha256(shape.encode() + pixels.tobytes()).digest(), ""


def _conflict_line(group: list[dict[str, str]]) -> str:
    return " = ".join(f"{image['name']} ({image['class']})" for image in group[:4])
