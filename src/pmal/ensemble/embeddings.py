"""Embeddings and logits of a whole set, without augmentation."""

import torch

from pmal.data.batches import ImageBatches, sequential_plan
from pmal.ensemble.classifier import Classifier


@torch.inference_mode()
def embed_images(
    model: Classifier, images: ImageBatches, batch_size: int = 512
) -> tuple[torch.Tensor, torch.Tensor]:
    """z_ND and logits_NK in float32 on the CPU.

    Full precision on every device: scores are compared by rank, and bfloat16 would make ties of them.
    """
    model.eval()
    outputs = [model.embed(batch) for batch in images.stream(sequential_plan(len(images), batch_size))]
    z_ND = torch.cat([z for z, _ in outputs]).float().cpu()
    logits_NK = torch.cat([logits for _, logits in outputs]).float().cpu()
    return z_ND, logits_NK
