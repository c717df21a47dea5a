"""Speed at full size: limits of the device, variants of a step, networks side by side, the profiler."""

import pytest
import torch

from benchmarks.speed import limits as device_limits
from benchmarks.speed import profiling, variants
from benchmarks.speed.__main__ import chosen_jobs, predictions, winners
from benchmarks.speed.limits import Limits, measure_limits
from benchmarks.speed.mining import cdist_distance, unit_logits
from benchmarks.speed.strong_reference import StrongPictures
from benchmarks.speed.variants import measure_variant, side_by_side
from pmal._runtime.session import open_session
from pmal.config import Resources
from pmal.ensemble.cost import multiplications
from pmal.errors import UsageError
from pmal.geometry.robustness import topology_distance
from pmal.speed.contestants import Case, Plan, plain_loop
from pmal.speed.measuring import CPU_QUICK, run_jobs
from pmal.speed.mining import Problem
from pmal.speed.reference import Pictures, smooth_pictures
from pmal.speed.timing import Stopwatch

CPU = torch.device("cpu")
TINY = Case("small", 16, 8, steps=2, classes=3, channels=1)
LIMITS = Limits({"float32": 1e12, "bfloat16": 1e12}, 1e10)


def test_limits_are_rates_of_products_and_copies(monkeypatch):
    monkeypatch.setitem(device_limits.PRODUCT_SIDE, "cpu", 64)
    monkeypatch.setitem(device_limits.COPY_BYTES, "cpu", 4096)
    ticks = iter(range(10**6))
    limits = measure_limits(CPU, Stopwatch(lambda: None, lambda: float(next(ticks))), repeats=2)
    assert limits == Limits({"float32": 2 * 64**3, "bfloat16": 2 * 64**3}, 2 * 4096)
    assert limits.describe()["copy_gb_per_s"] == pytest.approx(8192e-9)


def test_the_strong_reference_changes_colors_and_shapes_of_half_the_pictures_and_cuts_all():
    torch.manual_seed(0)
    pixels = smooth_pictures(1, 16, 3)
    seen = torch.stack([StrongPictures(pixels, [0] * 200, train=True)[i][0] for i in range(200)])
    assert torch.isfinite(seen).all()
    cut = ((seen == 0).all(dim=1).flatten(1).sum(dim=1) > 0).float().mean()
    assert 0.5 < cut < 1.0
    brightness = seen.mean(dim=(1, 2, 3))
    plain = torch.stack([Pictures(pixels, [0] * 200, train=True)[i][0] for i in range(200)])
    assert brightness.std() > 1.5 * plain.mean(dim=(1, 2, 3)).std()


def test_networks_side_by_side_are_a_row_of_their_own(monkeypatch):
    session, plan = open_session(Resources(device="cpu")), Plan(repeats=1)
    makers = variants._makers

    def as_if_on_a_gpu(case, variant, plan, session):
        pictures = case.pictures()
        together = {"together": lambda: side_by_side(case, pictures, variant, plan, session)}
        return makers(case, variant, plan, session) | together

    monkeypatch.setattr(variants, "_makers", as_if_on_a_gpu)
    found = measure_variant(TINY, "auto", plan, LIMITS, Stopwatch.of(CPU), session)
    alone, both = found["training"]
    assert (alone["variant"], both["variant"]) == ("auto", "auto, 2 side by side")
    assert both["ratio"] > 0
    assert winners({"training": [alone, both | {"images_per_s": 1e9}]}) == {"small": "auto"}


def test_a_variant_that_the_machine_lacks_is_a_note():
    session, plan = open_session(Resources(device="cpu")), Plan(repeats=1)
    found = measure_variant(TINY, "captured", plan, LIMITS, Stopwatch.of(CPU), session)
    assert found == {"notes": ["small, captured: only a GPU can capture a step"]}
    loop = plain_loop(TINY, TINY.pictures(), plan, session)
    with pytest.raises(UsageError, match="variant"):
        variants.use_variant("capturd", loop)


def test_shares_of_the_limits_are_quotients_of_the_figures_beside_them():
    session = open_session(Resources(device="cpu"))
    found = measure_variant(TINY, "eager", Plan(repeats=2), LIMITS, Stopwatch.of(CPU), session)
    [row], [joint] = found["training"], found["pmal_step"]
    assert (row["variant"], joint["variant"]) == ("eager", "eager")
    assert row["ratio"] == pytest.approx(row["images_per_s"] / row["reference_images_per_s"])
    assert row["share_of_peak"] == pytest.approx(row["gflops_per_image"] * 1e9 * row["images_per_s"] / 1e12)


def test_answers_by_the_limit_of_products(monkeypatch):
    answered = {"prediction": [{"precision": "float32", "images_per_s": 4.0}]}
    monkeypatch.setattr("benchmarks.speed.__main__.measure_prediction", lambda *about: answered)
    session = open_session(Resources(device="cpu"))
    [row] = predictions(TINY, CPU_QUICK, LIMITS, Stopwatch.of(CPU), session)["prediction"]
    flops = 2 * multiplications(TINY.network(CPU))
    assert row["share_of_peak"] == pytest.approx(4.0 * flops / 1e12)


def test_what_comes_too_late_is_a_note():
    jobs = [("mining", "a", lambda: {"mining": [1]}), ("threads", "b", None), ("mining", "c", None)]
    asked = iter([False, True])
    chosen = chosen_jobs(jobs, ("mining",), lambda: next(asked))
    *_, found = run_jobs(chosen, open_session(Resources(device="cpu")))
    assert found["mining"] == [1]
    assert found["notes"][-1] == "c: not measured, because the time was up"


def test_mining_and_its_reference_give_the_same_distances():
    problem = Problem.draw(300, 5, "cpu")
    a_NK, b_NK = unit_logits(problem)
    ours = topology_distance(problem.first, problem.second, device="cpu").x
    assert torch.allclose(cdist_distance(a_NK, b_NK, 128), ours, rtol=1e-3)


def test_kernels_by_kind_and_what_no_kernel_covers():
    found = profiling.summarize(
        [
            profiling.Kernel("sm90_xmma_fprop_implicit_gemm_bf16", 10.0, 14.0),
            profiling.Kernel("triton_poi_fused_add", 13.0, 15.0),  # one second of it beside the other
            profiling.Kernel("void at::native::FusedSgdMathFunctor", 18.0, 20.0),
        ]
    )
    assert found["microseconds"] == 10.0
    assert found["idle"] == pytest.approx(0.3)
    assert found["kinds"] == pytest.approx({"convolution": 0.4, "elementwise": 0.2, "optimizer": 0.2})
    assert found["top"][0]["name"] == "sm90_xmma_fprop_implicit_gemm_bf16"


def test_the_parts_of_a_step_on_the_cpu():
    case = Case("oscri", 32, 8, steps=1)
    found = profiling.profile_step(case, "pmal", "auto", open_session(Resources(device="cpu")))
    assert {"convolution", "batch norm", "optimizer"} <= set(found["kinds"])
    assert 0 <= found["idle"] < 0.01
    assert sum(found["kinds"].values()) == pytest.approx(1.0)
