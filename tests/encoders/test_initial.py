"""First weights of an encoder from a file."""

import pytest
import torch
from safetensors.torch import save_file

from pmal.config import EncoderConfig
from pmal.encoders import create_encoder
from pmal.encoders.initial import load_initial
from pmal.ensemble.classifier import Classifier, ClassifierSpec
from pmal.ensemble.classifiers import untrained
from pmal.errors import DataError
from tests.support.command_line import assert_one_line_error


def same(a, b):
    return all(torch.equal(tensor, b.state_dict()[name]) for name, tensor in a.state_dict().items())


@pytest.fixture
def file(tmp_path):
    torch.manual_seed(1)
    encoder = create_encoder("small", 1, 12)
    save_file(encoder.state_dict(), tmp_path / "w.safetensors")
    return encoder, tmp_path / "w.safetensors"


def test_every_network_of_a_run_begins_with_them_and_has_a_head_of_its_own(file):
    encoder, path = file
    spec = ClassifierSpec(EncoderConfig("small", weights=str(path)), ("a", "b"), 12, 1)
    first, second = (untrained(spec, torch.zeros(1), torch.ones(1), seed) for seed in (1, 2))
    assert same(encoder, first.encoder)
    assert same(encoder, second.encoder)
    assert not torch.equal(first.head.weight, second.head.weight)


def test_a_projection_keeps_its_own_and_a_classifier_gives_its_encoder(file, tmp_path):
    encoder, path = file
    projected = create_encoder("small", 1, 12, projection="linear")
    before = projected.projection.weight.clone()
    load_initial(projected, path)
    assert same(encoder, projected.encoder)
    assert torch.equal(projected.projection.weight, before)
    whole = Classifier(ClassifierSpec(EncoderConfig("small"), ("a", "b"), 12, 1))
    save_file(whole.state_dict(), tmp_path / "whole.safetensors")
    other = create_encoder("small", 1, 12)
    load_initial(other, tmp_path / "whole.safetensors")
    assert same(whole.encoder, other)


def test_weights_of_another_network_are_refused_before_anything_is_read(file, tmp_path, call):
    with pytest.raises(DataError, match="pass weights of the same network"):
        load_initial(create_encoder("oscri", 1, 12), file[1])
    words = ["fit", "--encoder", "oscri", "--weights", file[1], "--out", tmp_path / "run"]
    assert_one_line_error(call(*words), 3, str(file[1]), "pass weights of the same network")
    assert not (tmp_path / "run").exists()
