"""The prototypes' pictures and latest embeddings, a part of which is renewed at each training step.

The part has one size and its place moves on in device memory, so that a captured step rotates by itself. With
a part as large as the bank, every prototype is embedded anew at each step.

P prototypes, R of them renewed per step, K classes, T prototypes of the class that has most, D channels.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from pmal.errors import DataError


def refresh_size(count: int, batch_size: int, refresh: int = 0) -> int:
    """How many of `count` prototypes join each batch: as many as asked for, or by the rule of the method.

    >>> [refresh_size(count, batch_size=128) for count in (60, 256, 257, 10_000)]
    [60, 256, 128, 128]
    """
    if refresh:
        return min(refresh, count)
    return count if count <= 2 * batch_size else batch_size


def as_table(z_PD: Tensor, mask_KT: Tensor) -> Tensor:
    """One row per prototype, by class and then by rank, to (K, T, D) with zeros where the mask is False."""
    return _scatter(z_PD, mask_KT.flatten().nonzero().flatten(), mask_KT)


class PrototypeBank(nn.Module):
    """Buffers alone: what a step changes is in the state dict, and so in every checkpoint."""

    images: Tensor
    place: Tensor
    mask: Tensor
    cache: Tensor
    cursor: Tensor
    age: Tensor
    drift: Tensor

    def __init__(self, images_PCHW: Tensor, mask_KT: Tensor, features: int, refresh: int) -> None:
        """uint8 images by class and then by rank, as in `PrototypeSet.table()`."""
        super().__init__()
        count, device = len(images_PCHW), images_PCHW.device
        mask_KT = mask_KT.to(device)
        if not count or count != int(mask_KT.sum()):
            raise DataError(f"prototypes: {count} images for {int(mask_KT.sum())} entries: mine them again")
        self.refresh = min(refresh, count)
        place_P = mask_KT.flatten().nonzero().flatten()
        # First every class's best prototype, then every second one: a part is spread over many classes.
        order_P = (place_P % mask_KT.shape[1]).argsort(stable=True)
        for name, constant in (
            ("images", images_PCHW[order_P]),
            ("place", place_P[order_P]),
            ("mask", mask_KT),
        ):
            self.register_buffer(name, constant, persistent=False)
        self.register_buffer("cache", torch.zeros(count, features, device=device))
        self.register_buffer("cursor", torch.zeros((), dtype=torch.int64, device=device))
        self.register_buffer("age", torch.zeros(count, dtype=torch.int64, device=device))
        self.register_buffer("drift", torch.zeros(count, device=device))

    def due_images(self) -> Tensor:
        """The part of the next step, uint8 (R, C, H, W)."""
        return self.images.index_select(0, self._due())

    def renew(self, z_RD: Tensor) -> Tensor:
        """Take the embeddings of `due_images` in and move on; all prototypes, (K, T, D), come out.

        The gradient flows to the fresh ones; the others are constants, as old as `age` says.
        """
        due_R = self._due()
        table_KTD = _scatter(self.cache.index_copy(0, due_R, z_RD), self.place, self.mask)
        with torch.no_grad():
            moved_R = 1 - cosine_similarity(self.cache.index_select(0, due_R), z_RD, dim=1)
            self.drift.index_copy_(0, due_R, moved_R)
            self.age.add_(1).index_copy_(0, due_R, torch.zeros_like(due_R))
            self.cache.index_copy_(0, due_R, z_RD)
            self.cursor.add_(self.refresh).remainder_(len(self.images))
        return table_KTD

    def staleness(self) -> dict[str, float]:
        """Of the prototypes as the last step used them: the mean age in steps, and how far, by 1 - cosine,
        each had moved when it was renewed last. Waits for the device."""
        age, drift = torch.stack([self.age.double().mean(), self.drift.double().mean()]).tolist()
        return {"prototype_age": age, "prototype_drift": drift}

    def _due(self) -> Tensor:
        steps_R = torch.arange(self.refresh, device=self.cursor.device)
        return (self.cursor + steps_R).remainder(len(self.images))


def _scatter(z_PD: Tensor, place_P: Tensor, mask_KT: Tensor) -> Tensor:
    table = z_PD.new_zeros(mask_KT.numel(), z_PD.shape[1]).index_copy(0, place_P, z_PD)
    return table.view(*mask_KT.shape, -1)
