"""The text that Prometheus reads."""

import re

from pmal.serving.http.counters import Counter, Gauge, Histogram, Metrics

LINE = re.compile(r'[a-z_]+(\{[a-z_]+="([^"\\\n]|\\.)*"(,[a-z_]+="([^"\\\n]|\\.)*")*\})? -?[0-9.e+-]+')


def test_every_line_is_well_formed():
    metrics = Metrics()
    metrics.requests.add(route="/v1/predict", status="200")
    metrics.seconds.observe(0.3)
    metrics.gauges.append(Gauge("pmal_x", "x", lambda: 1.0, lambda: {"name": 'a "b"\\\n'}))
    lines = metrics.text().splitlines()
    assert metrics.text().endswith("\n")
    for line in lines:
        assert line.startswith(("# HELP ", "# TYPE ")) or LINE.fullmatch(line), line
    assert 'pmal_x{name="a \\"b\\"\\\\\\n"} 1' in lines


def test_histograms_are_cumulative_and_bounds_belong_to_their_bucket():
    histogram = Histogram("h", "about", (1.0, 2.5))
    for value in (0.5, 1.0, 2.0, 9.0):
        histogram.observe(value)
    assert histogram.lines()[2:] == [
        'h_bucket{le="1"} 2',
        'h_bucket{le="2.5"} 3',
        'h_bucket{le="+Inf"} 4',
        "h_sum 12.5",
        "h_count 4",
    ]


def test_counters_by_label_and_gauges_that_are_not_known():
    counter = Counter("c", "about")
    counter.add(b="2", a="1")
    counter.add(2, a="1", b="2")
    assert counter.lines()[2:] == ['c{a="1",b="2"} 3']
    assert Gauge("g", "about", lambda: None).lines() == []
