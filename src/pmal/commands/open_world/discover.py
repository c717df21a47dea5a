"""The command `pmal discover`: groups among the images that a model rejects."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pmal.commands.open_world.changing import ModelArgument, find_place
from pmal.commands.options import AGAIN, DeviceOption, JsonOption, start_session
from pmal.config import Resources
from pmal.errors import DataError, UsageError

if TYPE_CHECKING:
    from pmal.reporting.page.discovery.pile import SortedPile
    from pmal.serving.answers.image_files import BadFile

FILES = ("groups.csv", "groups.png", "groups.html")


def discover(
    run: ModelArgument,
    images: Annotated[
        list[str],
        typer.Argument(
            metavar="IMAGE|FOLDER|EMBEDDINGS",
            help="Image files, folders of them; for a model of embeddings, .npz, .parquet or .safetensors.",
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Folder for table, sheet and page. Default: discovery in RUN.")
    ] = None,
    smallest: Annotated[
        int | None,
        typer.Option(min=2, help="Images of a group at least. Default: 5 to 50, by their number."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Group what is known, too.")] = False,
    force: Annotated[bool, typer.Option(help="Replace earlier results, with names typed into them.")] = False,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Sort the images that the model of RUN rejects into groups: proposals of new classes, to be named.

    Writes a table (groups.csv) and a page (groups.html), either to give names in, and a contact sheet
    (groups.png). `pmal add-class RUN TABLE` makes classes of the named groups.

    Files that cannot be read are listed and the others are grouped; the exit code is 3 then.
    """
    session = start_session(Resources(device=device), as_json, AGAIN)

    from pmal.serving.answers.answer_text import error_lines
    from pmal.serving.answers.answering import open_model
    from pmal.serving.answers.rejected import sort_rejected

    place = find_place(run)
    named = "discovery" if place.folder.name == "model" else f"{place.folder.name}.discovery"
    out = out or place.folder.with_name(named)
    if (out / FILES[0]).exists() and not force:
        raise UsageError(f"{out / FILES[0]} exists, with names perhaps: choose another --out, or --force")
    model = open_model(place.folder, session.device)
    errors: list[BadFile] = []
    pile, seen = sort_rejected(model, images, errors, session, smallest, everything)
    if seen:
        _write(out, pile, run)
    if as_json:
        print(json.dumps(_described(pile, seen, out, errors)))
    else:
        print("".join(f"{line}\n" for line in error_lines(errors)), end="", file=sys.stderr)
        _say(pile, seen, out, run, everything)
    if errors:
        raise DataError(f"{len(errors):,} of {seen + len(errors):,} could not be looked at")


def _write(out: Path, pile: "SortedPile", run: Path) -> None:
    from pmal._runtime.files import atomic_path, make_folder, write_text
    from pmal.reporting.page.discovery.groups_page import groups_page, groups_sheet
    from pmal.reporting.page.discovery.names_table import names_table

    make_folder(out)
    table, sheet, page = (out / name for name in FILES)
    with atomic_path(sheet) as temporary:
        groups_sheet(pile).save(temporary, format="PNG")
    write_text(page, groups_page(pile, str(run)))
    write_text(table, names_table(pile))


def _say(pile: "SortedPile", seen: int, out: Path, run: Path, everything: bool) -> None:
    kind = "images" if everything else "rejected images"
    print(
        f"{len(pile.samples):,} {kind} of {seen:,}: {len(pile.groups):,} groups, {len(pile.left):,} in none"
    )
    for number, group in enumerate(pile.groups[:10], 1):
        first = pile.samples.name(int(group.members[0]))
        print(f"group {number}: {len(group.members):,}, tightness {group.tightness:.2f}, such as {first}")
    if seen:
        print(f"page: {out / FILES[2]}\ntable: {out / FILES[0]}\nsheet: {out / FILES[1]}")
        print(f"names typed, then: pmal add-class {run} NAMES.csv")


def _described(pile: "SortedPile", seen: int, out: Path, errors: "list[BadFile]") -> dict[str, object]:
    from pmal.serving.answers.answer_rows import unicode_name

    def names(positions: list[int]) -> list[str]:
        return [unicode_name(pile.samples.name(i)) for i in positions]

    groups = [
        {"group": number, "tightness": group.tightness, "images": names(group.members.tolist())}
        for number, group in enumerate(pile.groups, 1)
    ]
    listed = [{"image": unicode_name(bad.name), "reason": bad.reason} for bad in errors]
    return {
        "out": str(out),
        "looked_at": seen,
        "groups": groups,
        "in_none": names(pile.left),
        "errors": listed,
    }
