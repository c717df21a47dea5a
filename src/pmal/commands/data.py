"""The commands under `pmal data`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from pmal.commands.options import (
    AGAIN,
    DataRootOption,
    JsonOption,
    SourceArgument,
    start_session,
)
from pmal.config import Resources
from pmal.errors import DataError, UsageError

data_app = typer.Typer(help="Look at data sets, check them, convert them.", no_args_is_help=True)


@data_app.command("list")
def data_list(data_root: DataRootOption = None, as_json: JsonOption = False) -> None:
    """List the data sets known by name, and where they are, or what is looked for under the data root."""
    from pmal.data.sources.readers import find_source, list_sources, missing_root

    if root := missing_root(data_root):
        typer.echo(f"warning: data root {root}: no such folder: correct --data-root or $PMAL_DATA", err=True)
    rows = [(info, find_source(info.name, data_root)) for info in list_sources()]
    if as_json:
        found = [
            {"name": info.name, "found": str(where or "") or None, "plugin": info.plugin or None}
            for info, where in rows
        ]
        print(json.dumps(found))
        return
    from pmal.reporting.tables import align

    places = [
        f"plugin {info.plugin}" if info.plugin else str(where or f"not found: {', '.join(info.files)}")
        for info, where in rows
    ]
    print(
        align([[info.name, info.description, place] for (info, _), place in zip(rows, places, strict=True)])
    )


@data_app.command("check")
def data_check(source: SourceArgument, data_root: DataRootOption = None, as_json: JsonOption = False) -> None:
    """Look at every image of SOURCE once, and list all that is wrong with it, most serious first.

    Classes without images or with few, unreadable, tiny and flat images, equal and nearly equal ones in
    different classes or in training and test. Of embeddings: rows that are NaN,
    zero or equal. The exit code is 3 if `pmal fit` would reject the data, or if a row is NaN.
    """
    session = start_session(Resources(data_root=data_root), as_json, AGAIN)

    from pmal.data.inspection.check import check_source
    from pmal.data.inspection.check_rows import NOT_A_NUMBER
    from pmal.data.inspection.words import count_words, describe_check
    from pmal.data.sources.readers import open_to_check

    found = check_source(open_to_check(source, data_root), session.display)
    print(json.dumps(found) if as_json else describe_check(found, source))
    if not found["usable"]:
        raise DataError(f"{source}: `pmal fit` would reject the data: fix what is listed first")
    for problem in found["problems"]:
        if problem["kind"] == NOT_A_NUMBER:
            raise DataError(f"{source}: {count_words(problem)}: {problem['advice']}")


@data_app.command("convert")
def data_convert(
    source: SourceArgument,
    out: Annotated[Path, typer.Argument(metavar="OUT.parquet", help="The Parquet file to write.")],
    data_root: DataRootOption = None,
    force: Annotated[bool, typer.Option(help="Replace OUT.parquet if it exists.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write SOURCE as one Parquet file in Hugging Face's image layout. Encoded images keep their bytes."""
    start_session(Resources(data_root=data_root), True, AGAIN)

    from pmal.data.samples import VectorStore
    from pmal.data.sources.parquet import write_parquet
    from pmal.data.sources.readers import open_source

    if out.suffix != ".parquet":
        raise UsageError(f"{out}: the name must end in .parquet")
    if out.exists() and not force:
        raise UsageError(f"{out} exists: choose another name, or pass --force")
    opened = open_source(source, data_root)
    if isinstance(opened.train.store, VectorStore):
        raise UsageError(f"{source}: embeddings, and this layout holds images: convert those instead")
    parts = {"train": opened.train} | ({"test": opened.test} if opened.test is not None else {})
    if opened.foreign is not None:
        typer.echo(
            f"warning: the unknown images of {source} belong to another set and are left out", err=True
        )
    write_parquet(out, parts)
    counts = {name: len(part) for name, part in parts.items()}
    text = ", ".join(f"{count:,} {name} images" for name, count in counts.items())
    print(json.dumps({"file": str(out), "images": counts}) if as_json else f"{out}: {text}")


@data_app.command("splits")
def data_splits(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A data set with published splits.")],
    family: Annotated[
        str | None, typer.Option(help="A family that is published for it. Default: arpl if it exists.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print the known and unknown classes of every split, and what is wrong with the published lists."""
    from pmal.data.splits.protocols import as_json as splits_as_json
    from pmal.data.splits.protocols import list_families, split_defects, splits

    families = list_families(name)
    family = family or ("arpl" if "arpl" in families else families[0])
    table = splits(name, family)
    if as_json:
        print(json.dumps(splits_as_json(table)))
    else:
        for split in table:
            where = " (of the other set)" if split.foreign else ""
            print(f"{split.label}  known {_ids(split.known)}  unknown{where} {_ids(split.unknown)}")
    for defect in split_defects(name, family):
        typer.echo(f"warning: {defect} (family {family})", err=True)


def _ids(ids: tuple[int, ...]) -> str:
    return ",".join(map(str, ids)) or "all"
