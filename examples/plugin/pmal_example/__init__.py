"""A method, an encoder, a score and a data set for pmal. `--plugin pmal_example` loads all of them."""

from pmal_example import encoder, head, score, source

__all__ = ["encoder", "head", "score", "source"]
