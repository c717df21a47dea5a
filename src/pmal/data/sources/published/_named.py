"""The named data sets: their usual folders, and how each is detected and opened."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pmal.data.samples import Source
from pmal.data.sources.published.cifar import open_cifar10, open_cifar100
from pmal.data.sources.published.idx import idx_names, open_mnist
from pmal.data.sources.published.imagenet import LT_TRAIN, open_imagenet, open_imagenet_lt
from pmal.data.sources.published.svhn import open_svhn
from pmal.data.sources.published.tinyimagenet import open_tinyimagenet

_FASHION = "T-shirt/top,Trouser,Pullover,Dress,Coat,Sandal,Shirt,Sneaker,Bag,Ankle boot"
_IMAGENET_FOLDERS = ("imagenet", "ImageNet", "imagenet-1k", "ILSVRC2012", "ILSVRC/Data/CLS-LOC")


@dataclass(frozen=True)
class NamedSet:
    """A named set: the folders it may be in, and the files there that identify its official format."""

    description: str
    folders: tuple[str, ...]
    files: tuple[str, ...]
    open: Callable[[Path], Source]
    """Called with the folder of the file that was found, or with that file if it is an archive."""
    num_classes: int
    digits: bool = False
    fallback: tuple[str, ...] = ()
    """Folders outside the data root, searched last, and also without a data root."""
    cifar100_unknown: bool = False
    """Its unknown images are the test part of CIFAR-100."""


def _open_imagenet_lt(lists: Path) -> Source:
    """Open ImageNet-LT: the images of its lists are next to them, or in ImageNet's folder."""
    places = (".", *_IMAGENET_FOLDERS)
    return open_imagenet_lt(lists, [base / place for base in (lists, lists.parent) for place in places])


def _imagenet(count: int) -> NamedSet:
    return NamedSet(
        description=f"ImageNet, its first {count} classes known; train/<wnid>, val/<wnid>",
        folders=(*_IMAGENET_FOLDERS, f"imagenet-{count}"),
        files=("train/",),
        open=lambda path: open_imagenet(path, f"imagenet-{count}"),
        num_classes=1000,
    )


_CIFAR10 = NamedSet(
    description="objects, 32 px color, 10 classes",
    folders=("cifar10", "CIFAR10", "cifar-10", "."),
    files=(
        "cifar-10-batches-py/test_batch",
        "cifar-10-batches-bin/test_batch.bin",
        "test_batch",
        "test_batch.bin",
        "cifar-10-python.tar.gz",
        "cifar-10-binary.tar.gz",
    ),
    open=open_cifar10,
    num_classes=10,
)
NAMED = {
    "mnist": NamedSet(
        description="handwritten digits, 28 px gray",
        folders=("mnist", "MNIST/raw", "MNIST"),
        files=idx_names("train", "images", 3),
        open=lambda path: open_mnist(path, "mnist", "0123456789"),
        num_classes=10,
        digits=True,
    ),
    "fashion-mnist": NamedSet(
        description="clothing, 28 px gray, 10 classes",
        folders=("fashion-mnist", "FashionMNIST/raw", "FashionMNIST", "fashion_mnist"),
        files=idx_names("train", "images", 3),
        open=lambda path: open_mnist(path, "fashion-mnist", _FASHION.split(",")),
        num_classes=10,
        fallback=("/usr/share/datasets/fashion-mnist",),  # Debian's package dataset-fashion-mnist
    ),
    "svhn": NamedSet(
        description="house numbers, cropped digits, 32 px color",
        folders=("svhn", "SVHN"),
        files=("train_32x32.mat",),
        open=open_svhn,
        num_classes=10,
        digits=True,
    ),
    "cifar10": _CIFAR10,
    "cifar100": NamedSet(
        description="objects, 32 px color, 100 fine classes",
        folders=("cifar100", "CIFAR100", "cifar-100", "."),
        files=(
            "cifar-100-python/test",
            "cifar-100-binary/test.bin",
            "test",
            "test.bin",
            "cifar-100-python.tar.gz",
            "cifar-100-binary.tar.gz",
        ),
        open=open_cifar100,
        num_classes=100,
    ),
    **{
        f"cifar+{count}": dataclasses.replace(
            _CIFAR10,
            description=f"CIFAR-10's vehicles known, {count} classes of CIFAR-100 unknown",
            cifar100_unknown=True,
        )
        for count in (10, 50)
    },
    "tinyimagenet": NamedSet(
        description="ImageNet at 64 px, 200 classes",
        folders=("tinyimagenet", "tiny-imagenet-200", "tinyimagenet/tiny-imagenet-200", "tiny-imagenet"),
        files=("wnids.txt",),
        open=open_tinyimagenet,
        num_classes=200,
    ),
    "imagenet-100": _imagenet(100),
    "imagenet-200": _imagenet(200),
    "imagenet-lt": NamedSet(
        description="ImageNet-LT's lists, long-tailed, with its open set unknown",
        folders=("imagenet-lt", "ImageNet_LT", "ImageNet-LT", "imagenet_lt"),
        files=(LT_TRAIN,),
        open=_open_imagenet_lt,
        num_classes=1000,
    ),
}
