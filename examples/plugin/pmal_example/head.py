"""A method: each class is a direction, and an image is rejected by its angle to the nearest one."""

import torch
from torch.nn.functional import normalize

import pmal


@pmal.register_method("cosine")
class CosineHead(pmal.Head):
    own_scores = ("angle",)

    def __init__(self, shape: pmal.HeadShape, scale: float = 16.0) -> None:
        super().__init__()
        self.scale = scale
        self.directions = torch.nn.Parameter(torch.randn(shape.classes, shape.features))

    def forward(self, z):
        return self.scale * normalize(z) @ normalize(self.directions).T

    def unknown_scores(self, z, logits):
        return {"angle": 1 - logits.amax(dim=1) / self.scale}
