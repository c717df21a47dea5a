"""What a check found, as text: the parts, the problems with names, and what to do next."""

import shlex
import statistics
from typing import Any

from pmal._runtime.text import printable, short_path

LISTED = 10
"""Cases of a problem that are named; the rest is counted. JSON has all."""
_SHOWN_SIZES = _SHOWN_IMAGES = 4


def describe_check(found: dict[str, Any], typed: str = "SOURCE") -> str:
    """Return the result of `check_source` in words. typed: how the user calls the source."""
    lines = [f"{printable(found['source'])}:"]
    for name, part in found["parts"].items():
        lines += _part_lines(name, part)
    levels = {"error": "problems", "warning": "problems", "note": "notes"}
    for heading in ("problems", "notes"):
        some = [problem for problem in found["problems"] if levels[problem["level"]] == heading]
        if some:
            lines += [f"  {heading}:", *(line for problem in some for line in _problem_lines(problem))]
    return "\n".join([*lines, f"  verdict: {verdict(found, typed)}"])


def verdict(found: dict[str, Any], typed: str = "SOURCE") -> str:
    """Return one line: whether the data can be used, and what to do next."""
    serious = [problem for problem in found["problems"] if problem["level"] != "note"]
    if not found["usable"]:
        return "`pmal fit` rejects the data: fix what is listed first, then check again"
    fit = f"pmal fit {shlex.quote(printable(typed))} --out RUN"
    if not serious:
        return f"usable, nothing to fix; next: {fit}"
    return f"usable; look first at {count_words(serious[0])}; then: {fit}"


def _part_lines(name: str, part: dict[str, Any]) -> list[str]:
    counts = list(part["per_class"].values())
    what, width = ("rows", f" of {part['width']:,} numbers") if "width" in part else ("images", "")
    lines = [
        f"  {name}: {part['total']:,} {what}{width}, {len(counts)} classes",
        f"    {what} per class: {min(counts):,} to {max(counts):,}, median {statistics.median(counts):,g}",
    ]
    return lines if width else [*lines, *_image_lines(part)]


def _image_lines(part: dict[str, Any]) -> list[str]:
    sizes = ", ".join(f"{size} ({count:,})" for size, count in list(part["sizes"].items())[:_SHOWN_SIZES])
    more = len(part["sizes"]) - _SHOWN_SIZES
    lines = [f"    sizes: {sizes or 'none'}" + (f" and {more} more" if more > 0 else "")]
    if part["shorter_side"] and len(part["sizes"]) > 1:
        lines.append(
            f"    shorter side: {_spread(part['shorter_side'])}; longer: {_spread(part['longer_side'])}"
        )
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in part["kinds"].items())
    return [*lines, f"    colors: {kinds}"] if kinds else lines


def _spread(values: dict[str, float]) -> str:
    return f"{values['min']:,} to {values['max']:,} px, median {values['median']:,g}"


def count_words(problem: dict[str, Any]) -> str:
    """Return how many cases a problem has, in words that are right for one, too."""
    title = problem["title"]
    if problem["count"] == 1:
        for many, one in _SINGULAR:
            title = title.replace(many, one, 1)
    return f"{problem['count']:,} {title}"


_SINGULAR = (
    ("classes have", "class has"),
    ("images cannot", "image cannot"),
    ("images have", "image has"),
    ("images are", "image is"),
    ("rows have", "row has"),
    ("rows are", "row is"),
    ("files in class folders are no images", "file in a class folder is no image"),
    ("files lie", "file lies"),
    ("files of the desktop", "file of the desktop"),
    ("groups of", "group of"),
    ("pairs of", "pair of"),
    ("reasons for", "reason for"),
    ("their EXIF", "its EXIF"),
)


def _problem_lines(problem: dict[str, Any]) -> list[str]:
    head = f"    {count_words(problem)}: {problem['advice']}"
    if problem["kind"] in ("turned", "ignored"):  # names would help nobody
        return [head]
    lines = [f"      {printable(_item_line(item))}" for item in problem["items"][:LISTED]]
    more = problem["count"] - LISTED
    return [head, *lines, *([f"      and {more:,} more"] if more > 0 else [])]


def _item_line(item: dict[str, Any]) -> str:
    if "images" in item and "class" in item:
        return f"{item['class']}: {item['images']:,}" if item["images"] else str(item["class"])
    if "images" in item:
        several = len({image["part"] for image in item["images"]}) > 1
        shown = [_image_words(image, several) for image in item["images"]]
        more = f" and {len(shown) - _SHOWN_IMAGES} more" if len(shown) > _SHOWN_IMAGES else ""
        return (" ~ " if "bits" in item else " = ").join(shown[:_SHOWN_IMAGES]) + more
    if "name" not in item:
        return str(item["reason"])
    where = _image_words(item, item.get("part", "train") != "train") if "class" in item else item["name"]
    return f"{where}: {item['reason']}" if "reason" in item else str(where)


def _image_words(image: dict[str, str], with_part: bool) -> str:
    """Return an image by the last parts of its path, which as a rule has the class in it."""
    name = short_path(image["name"])
    part = f"{image['part']} " if with_part else ""
    return f"{part}{name}" if name.startswith(f"{image['class']}/") else f"{part}{name} ({image['class']})"
