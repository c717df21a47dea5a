"""Which r the report and the audit go by."""

import dataclasses

import numpy as np
import torch

from pmal._runtime.session import open_session
from pmal.config import MiningConfig, Resources, RunConfig
from pmal.reporting import image_quality
from pmal.reporting.image_quality import quality_of_images
from tests.reporting.embedded import embedded_samples

SESSION = open_session(Resources(device="cpu"))


def test_what_mining_left_counts_for_the_same_samples_rule_and_embeddings_alone(tmp_path, monkeypatch):
    samples, embedded = embedded_samples()
    measured = quality_of_images(embedded, samples, tmp_path, RunConfig(), SESSION)
    assert not list(tmp_path.iterdir())
    measured.save(tmp_path / "quality")
    again = []
    monkeypatch.setattr(image_quality, "rate_images", lambda *words: again.append(words))
    found = quality_of_images(embedded, samples, tmp_path, RunConfig(), SESSION)
    assert torch.equal(found.of(samples.ids), measured.log_r)
    assert not again
    others = dataclasses.replace(samples, ids=samples.ids + 1)
    fresh = [dataclasses.replace(one, fresh=True) for one in embedded]
    quality_of_images(embedded, others, tmp_path, RunConfig(), SESSION)
    quality_of_images(fresh, samples, tmp_path, RunConfig(), SESSION)
    probability = RunConfig(mining=MiningConfig(quality="probability"))
    quality_of_images(embedded, samples, tmp_path, probability, SESSION)
    assert len(again) == 3


def test_every_sample_keeps_its_r_whatever_the_order_of_the_ids(tmp_path):
    samples, embedded = embedded_samples()
    plain = quality_of_images(embedded, samples, tmp_path, RunConfig(), SESSION)
    order = np.random.default_rng(0).permutation(len(samples))
    moved = [dataclasses.replace(one, z_ND=one.z_ND[order]) for one in embedded]
    found = quality_of_images(moved, samples.at(order), tmp_path, RunConfig(), SESSION)
    assert torch.equal(found.ids, plain.ids)
    torch.testing.assert_close(found.log_r, plain.log_r)
