import numpy as np
import pytest
import torch

from pmal._runtime.processes.ranks import RankGroup
from pmal.geometry import topology as module
from pmal.geometry.kernels import kernel_for
from pmal.geometry.logits import space_of

CPU = torch.device("cpu")


class Counting:
    """The CPU's kernel, with an error put into its sums, that counts the rows computed once more."""

    def __init__(self, error=0.0):
        self.error, self.rows = error, 0

    def pair_sums(self, a, b, *, fast, advance, part):
        sums = kernel_for(CPU).pair_sums(a, b, fast=fast, advance=advance, part=part)
        return sums._replace(gap=sums.gap + self.error * sums.square_a)

    def squared_gaps(self, a, b, rows, alpha, beta):
        self.rows += len(rows)
        return kernel_for(CPU).squared_gaps(a, b, rows, alpha, beta)


def spaces(noise, n=700, classes=6, channels=8, seed=0):
    """Two views of clustered samples that differ by noise, of very different size from sample to sample."""
    rng = np.random.default_rng(seed)
    W = rng.normal(size=(classes, channels))
    z = 2 * W[rng.integers(0, classes, n)] + rng.normal(size=(n, channels))
    other = z + noise * rng.exponential(size=(n, 1)) * rng.normal(size=(n, channels))
    return space_of(z, W, CPU, ""), space_of(other, W, CPU, "")


def double_gap(a, b, topology):
    """x from the full matrices, in float64."""
    t_a, t_b = (torch.cdist(s.y_NR, s.y_NR, compute_mode="donot_use_mm_for_euclid_dist") for s in (a, b))
    if topology == "unit":
        return (t_a / t_a.norm(dim=1, keepdim=True) - t_b / t_b.norm(dim=1, keepdim=True)).norm(dim=1)
    x = (a.scale * t_a - b.scale * t_b).norm(dim=1)
    return x / len(x) ** 0.5 if topology == "rms" else x


@pytest.fixture(params=["float64", "float32"])
def path(request, monkeypatch):
    """Small sets go to float64 at once; without that limit they take the way of large sets."""
    if request.param == "float32":
        monkeypatch.setattr(module, "SMALL", 0)


@pytest.mark.slow
@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("topology", module.TOPOLOGIES)
def test_five_digits_however_close_the_spaces_are(topology):
    for noise in (3.0, 0.3, 0.03, 1e-3, 1e-5, 1e-8):
        a, b = spaces(noise)
        x = module.topology_gap(a, b, topology, kernel_for(CPU), fast=False, advance=None)
        torch.testing.assert_close(x, double_gap(a, b, topology), rtol=module.TOLERANCE, atol=0)


@pytest.mark.slow
@pytest.mark.usefixtures("path")
def test_ranking_is_that_of_float64_except_for_ties():
    a, b = spaces(0.5, n=3000)
    x = module.topology_gap(a, b, "unit", kernel_for(CPU), fast=False, advance=None)
    ranked = double_gap(a, b, "unit")[x.argsort()]
    assert float(((ranked.cummax(0).values - ranked) / ranked).max()) < 2 * module.TOLERANCE


def test_repeats_only_what_needs_it(monkeypatch):
    monkeypatch.setattr(module, "SMALL", 0)
    counting = Counting()
    module.topology_gap(*spaces(0.3, n=3000), "unit", counting, fast=False, advance=None)
    assert counting.rows == module._PROBES


def test_an_error_that_all_samples_share_is_taken_off(monkeypatch):
    """As that of matrix units, which truncate: nothing needs to be computed again."""
    monkeypatch.setattr(module, "SMALL", 0)
    a, b = spaces(0.3)
    counting = Counting()
    plain = counting.pair_sums

    def truncated(*args, **options):
        sums = plain(*args, **options)
        return sums._replace(gap=sums.gap + 1e-4 * (sums.square_a * sums.square_b).sqrt())

    counting.pair_sums = truncated
    x = module.topology_gap(a, b, "unit", counting, fast=False, advance=None)
    torch.testing.assert_close(x, double_gap(a, b, "unit"), rtol=module.TOLERANCE, atol=0)
    assert counting.rows < 2 * module._PROBES


@pytest.mark.parametrize("error", [1e-7, -1e-5, 1e-3])
def test_finds_and_repairs_the_errors_of_a_kernel(monkeypatch, error):
    monkeypatch.setattr(module, "SMALL", 0)
    a, b = spaces(0.3)
    right, counting = double_gap(a, b, "unit"), Counting(error)
    spoiled = module.topology_gap(a, b, "unit", counting, fast=True, advance=None)
    assert float((spoiled / right - 1).abs().max()) > module.TOLERANCE
    assert counting.rows == 0  # `fast` takes what it gets
    x = module.topology_gap(a, b, "unit", counting, fast=False, advance=None)
    torch.testing.assert_close(x, right, rtol=module.TOLERANCE, atol=0)


@pytest.mark.parametrize("where", ["small", "large"])
def test_finds_errors_of_small_gaps_alone_and_of_large_gaps_alone(monkeypatch, where):
    monkeypatch.setattr(module, "SMALL", 0)
    a, b = spaces(0.3)
    counting = Counting()
    plain = counting.pair_sums

    def spoiled(*args, **options):
        sums = plain(*args, **options)
        share = sums.gap / sums.square_a
        here = share < share.quantile(0.02) if where == "small" else share > share.quantile(0.98)
        return sums._replace(gap=torch.where(here, 1.01, 1.0) * sums.gap)

    counting.pair_sums = spoiled
    x = module.topology_gap(a, b, "unit", counting, fast=False, advance=None)
    torch.testing.assert_close(x, double_gap(a, b, "unit"), rtol=module.TOLERANCE, atol=0)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("topology", module.TOPOLOGIES)
def test_the_same_topology_is_zero_to_the_last_bit(topology):
    rng = np.random.default_rng(1)
    z, W = rng.normal(size=(300, 5)), rng.normal(size=(4, 5))
    rotation = np.linalg.qr(rng.normal(size=(5, 5)))[0]
    a, b = space_of(z, W, CPU, ""), space_of(z @ rotation, W @ rotation, CPU, "")
    assert not module.topology_gap(a, b, topology, kernel_for(CPU), fast=False, advance=None).any()


@pytest.mark.usefixtures("path")
def test_progress_adds_up_to_all_pairs():
    done = []
    module.topology_gap(*spaces(0.3), "unit", kernel_for(CPU), fast=False, advance=done.append)
    assert sum(done) == 700 * 700


def test_processes_that_all_compute_a_small_set_count_its_pairs_together_once():
    done = []
    for rank in range(2):
        options = {"fast": False, "advance": done.append, "ranks": RankGroup(rank, 2)}
        module.topology_gap(*spaces(0.3), "unit", kernel_for(CPU), **options)
    assert sum(done) == 700 * 700
