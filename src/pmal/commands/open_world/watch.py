"""The command `pmal watch`: does traffic still look like the images that were held out?"""

import json
from pathlib import Path
from typing import Annotated

import typer

from pmal.commands.open_world.changing import ModelArgument, find_place
from pmal.commands.options import AGAIN, JsonOption, start_display
from pmal.errors import UsageError


def watch(
    run: ModelArgument,
    answers: Annotated[
        list[Path],
        typer.Argument(
            metavar="ANSWERS",
            help="Output of `pmal predict --json` or --csv, or `pmal serve --p-values`; oldest first.",
        ),
    ],
    alarm: Annotated[
        float, typer.Option(help="How likely each of the two alarms may ever be false, such as 0.01.")
    ] = 0.01,
    as_json: JsonOption = False,
) -> None:
    """Test whether answered images still look like those that were held out, by the p-values of the answers.

    Two alarms, each false with a small probability however many answers there are: known images look more
    unknown than they did; and more of all images look unknown. No image is read.
    """
    start_display(as_json, AGAIN)

    from pmal.rejection.bundle.saving import describe_model
    from pmal.rejection.open_world.traffic_watch import TrafficWatch, check_watchable, in_words
    from pmal.serving.answers.answer_files import read_p_values, watched_name

    content = describe_model(find_place(run).folder)
    held_out, rule = content["calibration"], content["rule"]
    images = held_out["images"] if held_out else 0
    try:
        check_watchable(images, rule["per_class"])
    except UsageError as error:
        raise UsageError(f"{run}: {error}") from None
    watcher = TrafficWatch(images, rule["accept"], alarm)
    for path in answers:
        watcher.observe(read_p_values(path, watched_name(content["fingerprint"], rule["score"])))
    state = watcher.state()
    print(json.dumps(state) if as_json else "\n".join(in_words(state)))
