"""The settings of mining as a run has them: what `--set mining...` may say, and what config.toml keeps."""

import tomllib

import pytest

from pmal.config import (
    MiningConfig,
    RunConfig,
    build,
    field_help,
    merge,
    parse_assignment,
    to_settings,
    to_toml,
)
from pmal.errors import UsageError


def _run(*assignments):
    return build(RunConfig, merge(*(parse_assignment(f"mining.{text}") for text in assignments)))


def test_every_setting_has_a_help_text():
    assert set(field_help(MiningConfig)) == set(MiningConfig.__dataclass_fields__)


def test_settings_of_the_robustness_survive_toml():
    config = _run("temperature=2", "precision=fast", "landmarks=500")
    assert config.mining == MiningConfig(temperature=2.0, precision="fast", landmarks=500)
    assert build(RunConfig, tomllib.loads(to_toml(to_settings(config)))) == config


def test_a_run_from_before_these_settings_has_their_defaults():
    assert build(RunConfig, {"mining": {"per_class": 3, "topology": "rms"}}).mining == MiningConfig(
        per_class=3, topology="rms"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("temperature=-1", "mining.temperature = -1.0: must be 0, or 1e-100 or more, below 1e+100"),
        ("temperature=1e-320", "mining.temperature = 1e-320: must be 0, or 1e-100 or more, below 1e+100"),
        ("temperature=nan", "mining.temperature = nan: must be 0, or "),
        ("landmarks=1", "mining.landmarks = 1: must be 0, or 2 or more"),
        ("landmarks=2.5", "mining.landmarks = 2.5: expected int"),
        ("precision=exakt", "mining.precision = 'exakt': must be exact or fast"),
        ("per_class=0", "mining.per_class = 0: must be 1 or more"),
    ],
)
def test_wrong_settings_are_named(text, message):
    with pytest.raises(UsageError) as error:
        _run(text)
    assert str(error.value).startswith(message)
