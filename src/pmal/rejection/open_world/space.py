"""The space in which unknown images are sorted into groups."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pmal.ensemble.embeddings import batch_for
from pmal.rejection.model import Answers, OpenSetModel


@torch.no_grad()
def answer_with_space(model: OpenSetModel, images: Tensor) -> tuple[Answers, NDArray[np.float32]]:
    """Return what a model says of images, and the embeddings that they are grouped by.

    These are the features of a pretrained network if there is one: unknown classes lie apart in them, and
    what was trained on top tells known classes apart.
    """
    network = model.classifier
    if not network.on_features:
        answers = model.answer(images)
        return answers, answers.z.float().cpu().numpy()
    features = [
        network.features(batch.to(network.mean.device)) for batch in torch.split(images, batch_for(network))
    ]
    embedded = zip(*(model.embed_batch(batch) for batch in features), strict=True)
    answers = model.answer_embedded(*(torch.cat(column) for column in embedded))
    return answers, torch.cat(features).flatten(1).float().cpu().numpy()
