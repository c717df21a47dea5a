"""What was found in a pile of images: its groups, its leftovers, and a small picture of each image."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pmal.data.decoding.decode import decode_small, fit_to
from pmal.data.samples import BadImage, EncodedStore, Pixels, Samples
from pmal.rejection.open_world.grouping import Group

SIDE = 96


@dataclass(frozen=True, eq=False)
class SortedPile:
    """Images that were rejected, and the groups found among them."""

    samples: Samples
    groups: Sequence[Group]
    """The largest and tightest first; `members` are positions in `samples`."""
    class_names: tuple[str, ...]
    """Classes of the model. A group that is named as one of these holds known images that were rejected."""

    @property
    def left(self) -> list[int]:
        """Return the positions of what lies in no group."""
        grouped = {position for group in self.groups for position in group.members.tolist()}
        return [position for position in range(len(self.samples)) if position not in grouped]

    def summary(self) -> str:
        """Return one line: how many images, groups and leftovers."""
        sizes = f"{len(self.samples):,} {self.samples.unit} in {len(self.groups):,} groups"
        return f"{sizes}, {len(self.left):,} in none"

    def picture(self, position: int) -> Pixels | str:
        """Return a square picture, or the name if there is none to show."""
        samples = self.samples
        try:
            if isinstance(samples.store, EncodedStore):
                pixels = decode_small(samples.store.encoded(int(samples.ids[position])), SIDE)
            else:
                pixels = samples.read(position)
        except BadImage:
            return samples.name(position)
        return fit_to(np.ascontiguousarray(pixels), SIDE, 3)
