"""The encoders of rows: one linear layer for embeddings, several layers for tables."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from pmal.encoders import create_encoder
from pmal.errors import UsageError

pytestmark = pytest.mark.slow


def test_it_is_linear_and_no_wider_than_its_input():
    encoder = create_encoder("precomputed", in_channels=7, image_size=1)
    assert encoder.num_features == 7
    a, b = torch.randn(2, 3, 7, 1, 1)
    zero = encoder(torch.zeros(1, 7, 1, 1))
    torch.testing.assert_close(encoder(a + b) - zero, encoder(a) + encoder(b) - 2 * zero)
    assert create_encoder("precomputed", in_channels=2048).num_features == 512
    assert create_encoder("precomputed", in_channels=2048, width=32).num_features == 32
    with pytest.raises(UsageError, match=r"options\.width = 0: must be 1 or more"):
        create_encoder("precomputed", in_channels=8, width=0)


def test_the_perceptron_is_that_of_the_formula():
    """A float64 transcription: layers with layer norm and ReLU, then a linear one."""
    encoder = create_encoder("mlp", in_channels=5, image_size=1, width=3, hidden=8, layers=2).double()
    x_BD = torch.randn(4, 5, generator=torch.Generator().manual_seed(0)).double()
    weights = dict(encoder.named_parameters())
    assert len(weights) == 2 * (2 + 2) + 2
    h = x_BD.numpy()
    for linear, norm in ((0, 1), (4, 5)):
        w, b, scale, shift = (
            weights[f"layers.{i}.{name}"].detach().numpy()
            for i in (linear, norm)
            for name in ("weight", "bias")
        )
        h = h @ w.T + b
        h = (h - h.mean(axis=1, keepdims=True)) / np.sqrt(h.var(axis=1, keepdims=True) + 1e-5) * scale + shift
        h = np.maximum(h, 0)
    expected = h @ weights["layers.8.weight"].detach().numpy().T + weights["layers.8.bias"].detach().numpy()
    torch.testing.assert_close(encoder(x_BD[:, :, None, None]).detach(), torch.from_numpy(expected))
    assert create_encoder("mlp", in_channels=5).num_features == 64
    for option, bad in (("layers", 0), ("hidden", 0), ("width", -1), ("dropout", 1.0)):
        with pytest.raises(UsageError, match=f"options.{option} = {bad}: must be"):
            create_encoder("mlp", in_channels=5, **{option: bad})
    with pytest.raises(UsageError, match="encoder 'mlp' takes embeddings, not images of 28 px"):
        create_encoder("mlp", image_size=28)


def test_it_takes_no_images():
    with pytest.raises(UsageError, match="takes embeddings, not images of 28 px: choose oscri or small"):
        create_encoder("precomputed", in_channels=1, image_size=28)


def test_the_command_line_says_so_in_one_line(tmp_path):
    command = [
        sys.executable,
        "-m",
        "pmal",
        "fit",
        "--encoder",
        "precomputed",
        "--out",
        str(tmp_path / "run"),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "encoder 'precomputed' takes embeddings, not images of 28 px" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
