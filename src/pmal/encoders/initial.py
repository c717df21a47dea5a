"""Initial weights of a trained encoder, from a file instead of the random generator."""

from pathlib import Path

from torch import nn

from pmal.encoders.adapters import Projected
from pmal.encoders.pretrained.weights import load_weights, read_safetensors

ENCODER = "encoder."
HEAD = "head."


def load_initial(encoder: nn.Module, file: Path) -> None:
    """Load the tensors of a .safetensors file into an encoder, after comparing names and shapes.

    The names are those of the encoder. Of a whole classifier, as a run stores in classifiers/0, only the
    encoder is loaded. A projection keeps its random initial weights unless the file has it, too.

    Raises:
        DataError: the file cannot be read, or has the weights of another network.
    """
    tensors = read_safetensors(file)
    if any(name.startswith(HEAD) for name in tensors):
        tensors = {n.removeprefix(ENCODER): t for n, t in tensors.items() if n.startswith(ENCODER)}
    if isinstance(encoder, Projected) and not any(name.startswith("projection.") for name in tensors):
        encoder = encoder.encoder
    load_weights(encoder, tensors, f"weights {file}")
