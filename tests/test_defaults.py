"""What decides where the user has not."""

import pytest

from pmal import defaults
from pmal.config import read_recipe
from pmal.defaults import complete_settings, usual_recipe
from pmal.encoders.choice import Choice
from pmal.errors import UsageError


@pytest.fixture
def chosen(monkeypatch):
    monkeypatch.setattr(
        defaults, "choose_encoder", lambda samples, device: Choice("small", f"{samples} {device}")
    )


@pytest.mark.parametrize(
    ("encoder", "recipe"),
    [
        ({"name": "hf/a/b"}, "precomputed"),
        ({"name": "precomputed"}, "precomputed"),
        ({"name": "timm/net", "options": {"pretrained": True}}, "precomputed"),
        ({"name": "timm/net"}, "standard"),
        ({"name": "oscri"}, "standard"),
    ],
)
def test_the_recipe_goes_with_the_encoder(encoder, recipe):
    assert usual_recipe({"encoder": encoder, "data": {"source": "folder"}}) == recipe


@pytest.mark.parametrize("given", [{}, {"encoder": {"name": "auto"}}])
def test_own_images_choose_the_encoder(given, chosen):
    settings, note = complete_settings(given, None, lambda: "mine", "cpu")
    assert settings["encoder"]["name"] == "small"
    assert note == "encoder small: mine cpu"


def test_a_recipe_or_a_name_is_not_overruled(chosen):
    settings, note = complete_settings({}, "paper", lambda: "mine", "cpu")
    assert (settings["encoder"], note) == (read_recipe("paper")["encoder"], "")
    settings, note = complete_settings({"encoder": {"name": "oscri"}}, None, lambda: "mine", "cpu")
    assert (settings["encoder"]["name"], note) == ("oscri", "")


def test_a_known_data_set_has_its_recipe_also_for_auto(chosen):
    given = {"encoder": {"name": "auto"}, "data": {"source": "sample"}}
    settings, note = complete_settings(given, None, None, "cpu")
    assert settings.get("encoder", {}) == read_recipe("sample").get("encoder", {})
    assert note == ""


def test_a_method_s_own_recipe_is_that_of_the_data_set_too():
    given = {"method": "softmax", "data": {"source": "tinyimagenet"}, "training": {"epochs": 3}}
    settings, _ = complete_settings(given, "own", None, "cpu")
    assert settings["training"]["optimizer"] == "adam"
    assert settings["training"]["epochs"] == 3
    with pytest.raises(UsageError, match="did you mean 'softmax'"):
        complete_settings({"method": "sofmax"}, "own", None, "cpu")
