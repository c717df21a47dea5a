"""The encoder of embeddings: one linear layer."""

import subprocess
import sys

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
    with pytest.raises(UsageError, match="width of encoder precomputed is 0"):
        create_encoder("precomputed", in_channels=8, width=0)


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
