"""A small store whose pictures say which row they are, and an order to read it in."""

import torch
from torch.utils.data import Dataset

from pmal.errors import DataError

PLAN = torch.split(torch.arange(12), 4)


class Squares(Dataset):
    def __init__(self, bad=None):
        self.bad = bad

    def __len__(self):
        return 12

    def __getitems__(self, positions):
        if self.bad in positions:
            raise DataError(f"image {self.bad}: gone")
        return [position**2 for position in positions]
