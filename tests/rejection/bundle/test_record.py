"""model.json is read without trust: by its fields, their types and what they can be."""

import json

import pytest

from pmal.errors import DataError
from pmal.rejection.bundle.saving import describe_model
from tests.serving.bundles import edit_record, load, seal


def test_a_newer_format_asks_for_an_upgrade(folder):
    def change(content):
        content["version"] = 2
        content["something new"] = content.pop("classes")

    edit_record(folder, change)
    (folder / "more.safetensors").touch()
    seal(folder)
    with pytest.raises(DataError, match=r"model\.json: .*newer pmal: upgrade"):
        load(folder)
    with pytest.raises(DataError, match=r"model\.json: .*newer pmal: upgrade"):
        describe_model(folder)


@pytest.mark.parametrize("version", [0, -1])
def test_a_format_that_never_was_is_refused(folder, version):
    edit_record(folder, lambda content: content.update(version=version))
    with pytest.raises(DataError, match=rf"model\.json: format version {version} does not exist"):
        describe_model(folder)


def paths(value, prefix=()):
    """Where every value of nested JSON stands; of lists, the first entry."""
    yield prefix
    if isinstance(value, dict):
        for key in value:
            yield from paths(value[key], (*prefix, key))
    elif isinstance(value, list) and value:
        yield from paths(value[0], (*prefix, 0))


def parent(content, path):
    for step in path[:-1]:
        content = content[step]
    return content


WRONG = ({"__class__": 1}, [["x"]], 10**400, 1e300, "__import__('os')", True, None)


def may_be_none(path):
    return path[-1] in ("threshold", "revision", "calibration", "scale") or "libraries" in path[:-1]


@pytest.mark.slow
def test_every_field_of_model_json_is_needed_and_has_its_type(folder):
    content = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    for path in list(paths(content))[1:]:
        value = parent(content, path)[path[-1]]
        for wrong in WRONG:
            if value is None or type(wrong) is type(value) or (wrong is None and may_be_none(path)):
                continue
            with pytest.raises(DataError, match=r"model/model\.json: ") as caught:
                describe_changed(folder, content, path, wrong)
            assert "\n" not in str(caught.value)
            assert len(str(caught.value)) < 600
        if isinstance(path[-1], str) and path[:-1] not in (
            ("written_by", "libraries"),
            ("calibration", "scale"),
        ):
            with pytest.raises(DataError, match=rf"model/model\.json: .*({path[-1]}|network)"):
                describe_changed(folder, content, path, ...)


def describe_changed(folder, content, path, value):
    changed = json.loads(json.dumps(content))
    if value is ...:
        del parent(changed, path)[path[-1]]
    else:
        parent(changed, path)[path[-1]] = value
    (folder / "model.json").write_text(json.dumps(changed))
    seal(folder)
    return describe_model(folder)


@pytest.mark.parametrize(
    "place",
    [
        (),
        ("network",),
        ("network", "encoder"),
        ("normalization",),
        ("rule",),
        ("classes", 0),
        ("calibration",),
    ]
    + [("classes", 0, "prototypes", 0), ("written_by",)],
)
def test_foreign_fields_of_model_json_are_named(folder, place):
    edit_record(folder, lambda content: parent(content, (*place, None)).update({"_hook": "x"}))
    with pytest.raises(DataError, match=r"model\.json: .*_hook"):
        load(folder)
    with pytest.raises(DataError, match=r"model\.json: .*_hook"):
        describe_model(folder)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("rule", "score"), "surprise"),
        (("rule", "score"), "surprise" * 10_000),
        (("rule", "accept"), 0.0),
        (("rule", "accept"), 1.0),
        (("rule", "accept"), "inf"),
        (("rule", "threshold"), "nan"),
        (("distance",), "far"),
        (("network", "encoder", "projection"), "cubic"),
        (("network", "class_names"), []),
        (("calibration", "scale", "logit"), [1.0]),
        (("calibration", "scale", "logit"), [2.0, 1.0]),
        (("calibration", "scale", "logit"), ["1.0", "2.0"]),
        (("classes",), []),
    ],
)
def test_impossible_values_of_model_json(folder, path, value):
    def change(content):
        parent(content, path)[path[-1]] = value

    edit_record(folder, change)
    with pytest.raises(DataError, match=r"model\.json: ") as caught:
        describe_model(folder)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("added", [True, False])
def test_classes_beyond_those_of_the_network_need_a_distance(folder, added):
    def change(content):
        content["distance"] = None
        for entry in content["classes"]:
            entry["prototypes"] = None
        if added:
            content["classes"].append(dict(content["classes"][0], name="new"))

    edit_record(folder, change)
    if not added:
        describe_model(folder)
        return
    with pytest.raises(DataError, match=r"model\.json: .*there is no distance to compare by"):
        describe_model(folder)


def test_a_number_that_overflows_is_no_number(folder):
    def change(content):
        content["normalization"]["mean"] = ["HERE"]

    edit_record(folder, change)
    path = folder / "model.json"
    path.write_text(path.read_text().replace('"HERE"', "1e999"))
    seal(folder)
    with pytest.raises(DataError, match=r"model\.json: mean is inf: expected a number"):
        describe_model(folder)
