"""What Prometheus reads, as its own client reads it."""

from prometheus_client.parser import text_string_to_metric_families

from pmal.serving.http.counters import Metrics


def values(metrics):
    families = text_string_to_metric_families(metrics.text())
    return {(one.name, *one.labels.values()): one.value for family in families for one in family.samples}


def test_figures_by_label_histograms_and_values_that_are_asked_for():
    metrics, places = Metrics(), [3]
    metrics.requests.labels("/v1/predict", "200").inc()
    metrics.seconds.observe(0.3)
    metrics.model.info({"name": 'a "b"\\\n', "fingerprint": "f"})
    metrics.watch("pmal_x", "x", lambda: places[0])
    found = values(metrics)
    assert found["pmal_requests_total", "/v1/predict", "200"] == 1
    assert (found["pmal_predict_seconds_bucket", "0.25"], found["pmal_predict_seconds_bucket", "0.5"]) == (
        0,
        1,
    )
    assert found["pmal_model_info", "f", 'a "b"\\\n'] == 1
    assert found["pmal_x",] == 3
    assert found["process_resident_memory_bytes",] > 1e6


def test_two_services_in_a_process_count_for_themselves():
    first, second = Metrics(), Metrics()
    first.images.labels("known").inc()
    assert values(first)["pmal_images_total", "known"] == 1
    assert ("pmal_images_total", "known") not in values(second)
