"""Which r the report and the audit go by."""

import dataclasses

import numpy as np
import torch

from pmal._runtime.session import open_session
from pmal.config import Resources, RunConfig
from pmal.reporting.image_quality import measure_quality, stored_quality
from tests.reporting.test_audit import embedded_samples


def test_what_mining_left_counts_for_the_same_samples_and_rule_alone(tmp_path):
    samples, embedded = embedded_samples()
    assert stored_quality(tmp_path, samples, "topology") is None
    session = open_session(Resources(device="cpu"))
    measured = measure_quality(samples, embedded, RunConfig(), "topology", session)
    measured.save(tmp_path / "quality")
    found = stored_quality(tmp_path, samples, "topology")
    assert torch.equal(found.of(samples.ids), measured.log_r)
    assert stored_quality(tmp_path, samples, "probability") is None
    others = dataclasses.replace(samples, ids=samples.ids + 1)
    assert stored_quality(tmp_path, others, "topology") is None


def test_every_sample_keeps_its_r_whatever_the_order_of_the_ids():
    samples, embedded = embedded_samples()
    session = open_session(Resources(device="cpu"))
    plain = measure_quality(samples, embedded, RunConfig(), "topology", session)
    order = np.random.default_rng(0).permutation(len(samples))
    moved = [dataclasses.replace(one, z_ND=one.z_ND[order]) for one in embedded]
    found = measure_quality(samples.at(order), moved, RunConfig(), "topology", session)
    assert torch.equal(found.ids, plain.ids)
    torch.testing.assert_close(found.log_r, plain.log_r)
