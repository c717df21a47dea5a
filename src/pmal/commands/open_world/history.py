"""The command `pmal history`: every version of a model that was changed, and back to any of them."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from pmal.commands.open_world.changing import ModelArgument, find_place, only_change
from pmal.commands.options import AGAIN, JsonOption, start_display


def history(
    run: ModelArgument,
    restore: Annotated[
        int | None, typer.Option(metavar="N", help="Put version N in use again; it becomes a new version.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the versions of the model of RUN: what was changed, when, from which version, and its digest.

    The one in use has a star. `pmal predict RUN --version N` answers by another one.
    """
    start_display(as_json, AGAIN)

    from pmal.rejection.bundle.versions import current_version, list_versions, restore_version
    from pmal.reporting.tables import align

    place = find_place(run)
    if restore is not None:
        with only_change(place):
            restore_version(place.folder, restore)
    versions, current = list_versions(place.folder), current_version(place.folder)
    if as_json:
        used = current.version if current else None
        print(json.dumps({"versions": [asdict(one) for one in versions], "current": used}))
        return
    if not versions:
        print(f"{place.folder} was never changed: there is one version")
        return
    rows = [["", "version", "from", "when", "digest", "change"]]
    for one in versions:
        mark, source = "*" if one == current else "", "" if one.source is None else str(one.source)
        rows.append([mark, str(one.version), source, one.when, one.digest[:12], one.change])
    print(align(rows))
    if current is None:
        print(f"{place.folder} is none of these: the next change will keep it as a version")
