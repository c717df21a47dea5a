"""The prototypes' pictures and latest embeddings, a part of which is renewed at each training step.

The part has a fixed size, and its position moves on in device memory, so a captured step rotates by itself.
With a part as large as the bank, every prototype is embedded again at each step.

With S processes, process s holds the pictures s, s + S, s + 2 S, ... of the bank's order and embeds those of
them that are due; all embeddings are on every process. The content of a checkpoint does not depend on S.

P prototypes, R of them renewed per step, K classes, T prototypes of the class that has most, D channels,
p <= P pictures on this process, r <= R of them due, Q = S r embeddings of all processes in a step.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from pmal._runtime.processes.ranks import ALONE, Ranks
from pmal.errors import DataError


def refresh_size(count: int, batch_size: int, refresh: int = 0) -> int:
    """Return how many of `count` prototypes join each batch: `refresh` of them, or by default a rule.

    All join if they are at most two batches, else one batch of them.

    >>> [refresh_size(count, batch_size=128) for count in (60, 256, 257, 10_000)]
    [60, 256, 128, 128]
    """
    if refresh:
        return min(refresh, count)
    return count if count <= 2 * batch_size else batch_size


def as_table(z_PD: Tensor, mask_KT: Tensor) -> Tensor:
    """Return rows, ordered by class and then by rank, as (K, T, D) with zeros where the mask is False."""
    return _scatter(z_PD, mask_KT.flatten().nonzero().flatten(), mask_KT)


def held_prototypes(mask_KT: Tensor, ranks: Ranks = ALONE) -> Tensor:
    """Return which pictures this process's bank holds, counted by class and then by rank, ascending."""
    return _order(mask_KT)[ranks.rank :: ranks.size].sort().values


class PrototypeBank(nn.Module):
    """Images and embeddings of prototypes. Only buffers: all state that a step changes is in checkpoints."""

    images: Tensor
    place: Tensor
    mask: Tensor
    cache: Tensor
    cursor: Tensor
    age: Tensor
    drift: Tensor

    def __init__(
        self, images_pCHW: Tensor, mask_KT: Tensor, features: int, refresh: int, ranks: Ranks = ALONE
    ) -> None:
        """Take the uint8 images of `held_prototypes`, ordered as in `PrototypeSet.table()`."""
        super().__init__()
        device, self.ranks = images_pCHW.device, ranks
        mask_KT = mask_KT.to(device)
        order_P = _order(mask_KT)
        count, own_p = len(order_P), order_P[ranks.rank :: ranks.size]
        if not count or len(images_pCHW) != len(own_p):
            raise DataError(
                f"prototypes: {len(images_pCHW)} images for {len(own_p)} entries: mine them again"
            )
        # Equally many on every process: if one is missing, another fills in, and its embedding is dropped.
        self.refresh, self.held = -(-min(refresh, count) // ranks.size), -(-count // ranks.size)
        images_pCHW = images_pCHW[own_p.argsort().argsort()]
        if len(images_pCHW) < self.held:
            images_pCHW = torch.cat([images_pCHW, images_pCHW[:1]])
        for name, constant in (
            ("images", _fill_up(images_pCHW, self.held)),
            ("place", mask_KT.flatten().nonzero().flatten()[order_P]),
            ("mask", mask_KT),
        ):
            self.register_buffer(name, constant, persistent=False)
        self.register_buffer("cache", torch.zeros(count, features, device=device))
        self.register_buffer("cursor", torch.zeros((), dtype=torch.int64, device=device))
        self.register_buffer("age", torch.zeros(count, dtype=torch.int64, device=device))
        self.register_buffer("drift", torch.zeros(count, device=device))

    def fill(self, z_pD: Tensor) -> None:
        """Store the embeddings of all `images`, before the first step."""
        every_Q = torch.arange(self.held * self.ranks.size, device=self.cache.device)
        self.cache.copy_(self._put(self.cache, every_Q, self._gather(z_pD.to(self.cache))))

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def due(self) -> Tensor:
        """Return the pictures that each process embeds next, (r,).

        Never compiled: the backward pass would compute it again, from the cursor that has moved on by then,
        and give the gradients to the wrong prototypes.
        """
        steps_r = torch.arange(self.refresh, device=self.cursor.device)
        return (self.cursor // self.ranks.size + steps_r).remainder(self.held)

    def renew(self, due_r: Tensor, z_rD: Tensor) -> Tensor:
        """Store the embeddings of the `due` pictures, move on, and return all prototypes, (K, T, D).

        The gradient flows to the new embeddings, whichever process computed them. The others are constants;
        `age` counts their steps.
        """
        due_Q, z_QD = self._anywhere(due_r), self._gather(z_rD)
        renewed_PD = self._put(self.cache, due_Q, z_QD)
        table_KTD = _scatter(renewed_PD, self.place, self.mask)
        with torch.no_grad():
            before_QD = self.cache.index_select(0, due_Q.clamp(max=len(self.cache) - 1))
            moved_Q = 1 - cosine_similarity(before_QD, z_QD, dim=1)
            self.drift.copy_(self._put(self.drift, due_Q, moved_Q))
            self.age.copy_(self._put(self.age + 1, due_Q, torch.zeros_like(due_Q)))
            self.cache.copy_(renewed_PD)
            self.cursor.add_(self.refresh * self.ranks.size).remainder_(self.held * self.ranks.size)
        return table_KTD

    def staleness(self) -> dict[str, float]:
        """Return the mean age in steps and the mean drift of the embeddings that the last step used.

        The drift of a prototype is 1 - cosine between its embeddings before and after its last renewal.
        This call waits for the device.
        """
        age, drift = torch.stack([self.age.double().mean(), self.drift.double().mean()]).tolist()
        return {"prototype_age": age, "prototype_drift": drift}

    def _anywhere(self, due_r: Tensor) -> Tensor:
        """Return the pictures' positions in the bank's order; those of stand-ins are beyond its end."""
        size = self.ranks.size
        return (due_r[:, None] * size + torch.arange(size, device=due_r.device)).flatten()

    def _gather(self, z_rD: Tensor) -> Tensor:
        """Return every process's embeddings, first picture first."""
        return self.ranks.gather_alike(z_rD).transpose(0, 1).flatten(0, 1)

    def _put(self, old_P: Tensor, place_Q: Tensor, new_Q: Tensor) -> Tensor:
        """Return the old rows with some of them replaced."""
        return _fill_up(old_P, self.held * self.ranks.size).index_copy(0, place_Q, new_Q)[: len(old_P)]


def _order(mask_KT: Tensor) -> Tensor:
    """Return every class's best prototype first, then every second one: a part covers many classes."""
    place_P = mask_KT.flatten().nonzero().flatten()
    return (place_P % mask_KT.shape[1]).argsort(stable=True)


def _fill_up(rows: Tensor, count: int) -> Tensor:
    """Return at least `count` rows, padded with zeros."""
    return (
        torch.cat([rows, rows.new_zeros(count - len(rows), *rows.shape[1:])]) if len(rows) < count else rows
    )


def _scatter(z_PD: Tensor, place_P: Tensor, mask_KT: Tensor) -> Tensor:
    table = z_PD.new_zeros(mask_KT.numel(), z_PD.shape[1]).index_copy(0, place_P, z_PD)
    return table.view(*mask_KT.shape, -1)
