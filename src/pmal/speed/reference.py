"""The loop that figures are compared with: what a public open-set repository typically has.

A DataLoader whose workers open pictures with Pillow, change and convert them one by one; the network in
float32 as torch lays it out by default, run as it is written; the loss looked at after every step. Two
habits that help it are kept, because many repositories have them: cuDNN tries its algorithms in training, and
workers live on from one epoch to the next.
"""

import io
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

from pmal._runtime.signals import leave_interrupts_to_parent
from pmal.data.feeding.augmentation import crop_padding
from pmal.data.samples import Pixels
from pmal.ensemble.classifier import Classifier, ClassifierSpec

WORKERS = 4
"""Processes next to a GPU. A CPU that trains has no core to spare: there the loop reads its own pictures."""
LARGEST_ARRAY_IMAGE = 64
"""Sets of small images are arrays, as CIFAR is; of larger ones, every picture is a JPEG file."""


class Pictures(Dataset[tuple[Tensor, int]]):
    """Pictures and labels, one at a time, as torchvision's data sets and transforms make them."""

    def __init__(self, pixels_NHWC: Pixels, labels: list[int], *, train: bool) -> None:
        """Hold pictures and labels; fewer pictures than labels are taken again from the start."""
        self.labels, self.train, self.side = labels, train, pixels_NHWC.shape[1]
        small = self.side <= LARGEST_ARRAY_IMAGE
        self.stored: list[NDArray[np.uint8] | bytes] = [p if small else _jpeg(p) for p in pixels_NHWC]
        self.mean, self.std = (torch.full((pixels_NHWC.shape[3], 1, 1), value) for value in (0.5, 0.25))

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        stored = self.stored[index % len(self.stored)]
        picture = Image.open(io.BytesIO(stored)) if isinstance(stored, bytes) else _from_array(stored)
        if self.train:
            return self.augmented(picture), self.labels[index]
        picture = ImageOps.fit(picture, (self.side, self.side)) if picture.width > self.side else picture
        return self._to_tensor(picture), self.labels[index]

    def augmented(self, picture: Image.Image) -> Tensor:
        """Return a training picture, cropped and flipped at random."""
        return self._to_tensor(_random_flip(_random_crop(picture, self.side)))

    def _to_tensor(self, picture: Image.Image) -> Tensor:
        pixels = torch.from_numpy(np.array(picture)).view(self.side, self.side, len(self.mean))
        scaled = pixels.permute(2, 0, 1).contiguous().float().div(255)
        return scaled.sub_(self.mean).div_(self.std)


class ReferenceLoop:
    """A network, its pictures and the steps over them."""

    def __init__(
        self,
        spec: ClassifierSpec,
        pixels_NHWC: Pixels,
        labels: list[int],
        batch_size: int,
        device: torch.device,
        dataset: type[Pictures] = Pictures,
    ) -> None:
        self.dataset = dataset
        self.pixels, self.labels, self.batch_size, self.device = pixels_NHWC, labels, batch_size, device
        self.model = Classifier(spec).to(device)
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), lr=1e-3, momentum=0.9, weight_decay=5e-4, nesterov=True
        )
        self.losses: list[float] = []

    def trainer(self) -> Callable[[], None]:
        """Return what runs one epoch per call."""
        loader = self._loader(train=True)

        def epoch() -> None:
            self.model.train()
            for images, labels in self._batches(loader):
                loss = cross_entropy(self.model(images), labels)
                self.optimizer.zero_grad()
                torch.autograd.backward(loss)
                self.optimizer.step()
                self.losses.append(loss.item())

        return epoch

    def tester(self) -> Callable[[], Tensor]:
        """Return what gives class and probability of every picture, per call."""
        loader = self._loader(train=False)

        @torch.no_grad()
        def epoch() -> Tensor:
            self.model.eval()
            found = [self.model(images).softmax(1).max(1) for images, _ in self._batches(loader)]
            return torch.cat([torch.stack([p.cpu(), k.cpu().float()]) for p, k in found], dim=1)

        return epoch

    def answerer(self) -> Callable[[], tuple[int, float]]:
        """Return what gives class and probability of one picture, per call."""
        pictures = Pictures(self.pixels[:1], self.labels[:1], train=False)

        @torch.no_grad()
        def answer() -> tuple[int, float]:
            self.model.eval()
            image, _ = pictures[0]
            probability, label = self.model(image[None].to(self.device)).softmax(1).max(1)
            return int(label), float(probability)

        return answer

    def _loader(self, *, train: bool) -> DataLoader[tuple[Tensor, int]]:
        on_gpu = self.device.type == "cuda"
        return DataLoader(
            self.dataset(self.pixels, self.labels, train=train),
            batch_size=self.batch_size,
            shuffle=train,
            drop_last=train,
            num_workers=WORKERS if on_gpu else 0,
            persistent_workers=on_gpu,
            pin_memory=on_gpu,
            worker_init_fn=leave_interrupts_to_parent,
        )

    def _batches(self, loader: DataLoader[Any]) -> Iterator[tuple[Tensor, Tensor]]:
        for images, labels in loader:
            yield images.to(self.device), labels.to(self.device)


def smooth_pictures(count: int, side: int, channels: int, seed: int = 0) -> Pixels:
    """Return random pictures without detail, (N, H, W, C).

    A JPEG of noise would take longer than a photo does.
    """
    generator = np.random.default_rng(seed)
    coarse = generator.integers(0, 256, (count, 8, 8, channels), dtype=np.uint8)
    pictures = (_from_array(pixels).resize((side, side), Image.Resampling.BILINEAR) for pixels in coarse)
    smooth: Pixels = np.stack([np.asarray(picture).reshape(side, side, channels) for picture in pictures])
    return smooth


def _from_array(pixels_HWC: Pixels) -> Image.Image:
    return Image.fromarray(pixels_HWC[:, :, 0] if pixels_HWC.shape[2] == 1 else pixels_HWC)


def _jpeg(pixels_HWC: Pixels) -> bytes:
    """Return a JPEG of the size that sets are commonly kept in: an eighth larger than the network sees."""
    picture, file = _from_array(pixels_HWC), io.BytesIO()
    side = picture.width * 8 // 7
    picture.resize((side, side)).save(file, "JPEG", quality=90)
    return file.getvalue()


def _random_crop(picture: Image.Image, side: int) -> Image.Image:
    """Return a window of the padded picture; of a larger one, a random part brought to size."""
    if picture.width > side:
        part = int(picture.width * (0.3 + 0.7 * float(torch.rand(()))))
        left, top = (int(torch.randint(0, picture.width - part + 1, ())) for _ in range(2))
        box = (left, top, left + part, top + part)
        return picture.resize((side, side), Image.Resampling.BILINEAR, box=box)
    padding = crop_padding(torch.empty(1, 1, side, side))
    left, top = (int(torch.randint(0, 2 * padding + 1, ())) for _ in range(2))
    return ImageOps.expand(picture, border=padding).crop((left, top, left + side, top + side))


def _random_flip(picture: Image.Image) -> Image.Image:
    flipped = float(torch.rand(())) < 0.5
    return picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flipped else picture
