"""The command `pmal watch`: does traffic still look like the images that were held out?"""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from pmal.commands.open_world.changing import ModelArgument, find_place
from pmal.commands.options import AGAIN, JsonOption, start_display
from pmal.errors import UsageError


def watch(
    run: ModelArgument,
    answers: Annotated[
        list[Path],
        typer.Argument(metavar="ANSWERS", help="What `pmal predict --json` or --csv printed, oldest first."),
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
    from pmal.rejection.open_world.traffic_watch import TrafficWatch
    from pmal.serving.answers.answer_files import read_p_values

    content = describe_model(find_place(run).folder)
    held_out, rule = content["calibration"], content["rule"]
    if held_out is None:
        raise UsageError(f"{run}: no images were held out, so there are no p-values: fit with more images")
    if rule["per_class"]:
        fix = "watch a run that was fitted with rejection.per_class=false"
        raise UsageError(f"{run}: it has a threshold per class, so its p-values are not of one kind: {fix}")
    watcher = TrafficWatch(held_out["images"], rule["accept"], alarm)
    for path in answers:
        watcher.observe(read_p_values(path))
    state = watcher.state()
    print(json.dumps(state) if as_json else _text(state))


def _text(state: dict[str, Any]) -> str:
    if not state["answered"]:
        return "no answers"
    rate, expected = 100 * state["rejection_rate"], 100 * state["expected_rejection_rate"]
    usual = f"{expected:.1f} % of known images are"
    lines = [f"{state['rejected']:,} of {state['answered']:,} rejected ({rate:.1f} %; {usual})"]
    words = {"known": "accepted images look as held out", "traffic": "all images look as held out"}
    changed = {
        "known": "ALARM: known images look more unknown than those held out",
        "traffic": "ALARM: more images look unknown than of known ones alone",
    }
    for name in words:
        one = state[name]
        said = f"{changed[name]}, since answer {one['alarm_at']:,}" if one["alarm"] else words[name]
        lines.append(f"{said} (evidence 10^{one['evidence']:.1f})")
    return "\n".join(lines)
