"""The OpenAPI page says what really comes."""

import pytest

from pmal.rejection.model import Rule
from pmal.serving.http.schemas import Model, Predictions, Problem
from tests.serving.http_service import call, form, png, predict, running_model, serve_model
from tests.serving.tiny_model import make_model


@pytest.mark.parametrize(
    "model",
    [
        make_model,
        lambda: make_model(Rule("logit", threshold=float("inf")), prototypes=False),
        lambda: make_model(Rule("distance", threshold=0.5), calibrated=False),
    ],
    ids=["pmal", "softmax", "not calibrated"],
)
def test_every_answer_has_the_form_that_is_documented(model):
    with running_model(serve_model(model())) as (_, port):
        Predictions.model_validate(predict(port, *form(("a", png(0)), ("b", b"no"), ("c", png(3)))).body)
        Model.model_validate(call(port, "GET", "/v1/model").body)
        Problem.model_validate(predict(port, b"no").body)
        described = call(port, "GET", "/openapi.json").body
    assert {"Answer", "Predictions", "Problem", "Model"} <= set(described["components"]["schemas"])
    for path, routes in described["paths"].items():
        for route in routes.values():
            assert "200" in route["responses"], path
