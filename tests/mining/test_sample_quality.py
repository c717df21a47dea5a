"""The quality of all samples as a file."""

import pytest
import torch

from pmal._runtime.tensors import save_tensors
from pmal.errors import DataError
from pmal.mining.sample_quality import SampleQuality


def quality(ids=(1, 4, 9), **words):
    return SampleQuality(torch.tensor(ids), -torch.arange(3.0).double(), "topology", **words)


def test_it_is_read_back_as_it_was(tmp_path):
    quality(notes=("first", "second")).save(tmp_path / "quality")
    found = SampleQuality.load(tmp_path / "quality")
    assert torch.equal(found.ids, torch.tensor([1, 4, 9]))
    assert torch.equal(found.log_r, torch.tensor([0.0, -1.0, -2.0]).double())
    assert (found.rule, found.notes) == ("topology", ("first", "second"))


def test_written_again_it_has_the_same_name(tmp_path):
    for _ in range(2):
        quality().save(tmp_path / "quality")
    assert sorted(f.name for f in tmp_path.iterdir()) == ["quality.json", "quality.safetensors"]


@pytest.mark.parametrize("ids", [[1, 4], [1, 4, 9, 10], [1, 4, 8], [1, 4, 4], []])
def test_of_other_samples_it_knows_nothing(ids):
    assert quality().of(ids) is None


def test_the_order_is_that_of_the_ids_asked_for():
    assert quality().of([9, 1, 4]).tolist() == [-2.0, 0.0, -1.0]


@pytest.mark.parametrize("ids", [(4, 1, 9), (1, 1, 9), (1, 4)])
def test_ids_that_do_not_fit_are_refused(ids):
    with pytest.raises(DataError, match="sample quality"):
        quality(ids)


def test_a_file_of_another_kind_is_refused(tmp_path):
    save_tensors(tmp_path / "quality", {"ids": torch.arange(3)}, {"format": "other"})
    with pytest.raises(DataError, match="not the quality of samples"):
        SampleQuality.load(tmp_path / "quality")
