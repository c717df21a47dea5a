"""Names and paths to sources; the sets are written in small by the tests of their readers."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from pmal.data.samples import ArrayStore, Samples
from pmal.data.sources.parquet import write_parquet
from pmal.data.sources.published._named import NAMED
from pmal.data.sources.published.cifar import CIFAR10_CLASSES, CIFAR100_CLASSES
from pmal.data.sources.readers import find_source, list_sources, open_source
from pmal.data.splits.protocols import NUM_CLASSES
from pmal.errors import DataError, UsageError
from tests.data.sources.published.cifar_files import (
    assert_is,
    assert_is_cifar10,
    cifar10_files,
    cifar100_files,
    make_rows,
    write,
    write_archive,
)
from tests.data.sources.published.idx_files import write_set
from tests.data.sources.published.svhn_files import write_svhn
from tests.data.sources.published.tinyimagenet_tree import WNIDS, save_image, write_tree

TEN = tuple("0123456789")


def made(count: int, class_names: tuple[str, ...]) -> Samples:
    pixels = np.random.default_rng(count).integers(0, 256, (count, 8, 8, 3), dtype=np.uint8)
    return Samples.whole(ArrayStore("made", pixels), np.arange(count) % len(class_names), class_names)


def arrays_to_parquet(path: Path, count: int, class_names: tuple[str, ...]) -> None:
    write_parquet(path, {"train": made(count, class_names)})


def shards_to_parquet(folder: Path, class_names: tuple[str, ...]) -> None:
    """20 training and 10 test images."""
    arrays_to_parquet(folder / "train-00000-of-00001.parquet", 20, class_names)
    arrays_to_parquet(folder / "test-00000-of-00001.parquet", 10, class_names)


def write_imagenet_tree(root: Path, classes: int = 1000) -> Path:
    for label in range(classes):
        for part in ("train", "val"):
            path = root / part / f"n{label:08}" / f"{label}.JPEG"
            path.parent.mkdir(parents=True)
            path.touch()
    return root


def refusal(source: str, root: Path | None) -> str:
    with pytest.raises(DataError) as caught:
        open_source(source, root)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_every_name_of_the_design_is_listed():
    names = [info.name for info in list_sources()]
    assert names == [
        "sample", "mnist", "fashion-mnist", "svhn", "cifar10", "cifar100", "cifar+10", "cifar+50",
        "tinyimagenet", "imagenet-100", "imagenet-200", "imagenet-lt",
    ]  # fmt: skip
    assert set(NUM_CLASSES) <= set(names)
    assert all(NAMED[name].num_classes == NUM_CLASSES[name] for name in NAMED if name in NUM_CLASSES)
    files = {info.name: info.files for info in list_sources()}
    assert "mnist/train-images-idx3-ubyte.gz" in files["mnist"]
    assert {"cifar10/*.parquet", "cifar100/*.parquet"} <= set(files["cifar+10"])


@pytest.mark.parametrize("folder", ["mnist", "MNIST/raw", "MNIST"])
def test_mnist_in_its_customary_folders(tmp_path, folder):
    arrays = write_set(tmp_path / folder, packed=True)
    source = open_source("mnist", tmp_path)
    assert source.train.labels.tolist() == arrays["train", "labels"].tolist()
    assert (source.name, source.digits) == ("mnist", True)
    assert find_source("mnist", tmp_path) == tmp_path / folder


@pytest.mark.parametrize("folder", ["fashion-mnist", "FashionMNIST/raw", "FashionMNIST"])
def test_fashion_mnist_is_no_digits(tmp_path, folder):
    write_set(tmp_path / folder)
    source = open_source("fashion-mnist", tmp_path)
    assert (source.name, source.digits) == ("fashion-mnist", False)
    assert source.train.class_names[0] == "T-shirt/top"
    assert source.train.class_names[9] == "Ankle boot"
    assert str(tmp_path) in source.train.name(0)


def test_fashion_mnist_falls_back_to_the_system_folder(tmp_path, monkeypatch):
    system, root = tmp_path / "system", tmp_path / "root"
    write_set(system)
    root.mkdir()
    fashion = dataclasses.replace(NAMED["fashion-mnist"], fallback=(str(system),))
    monkeypatch.setitem(NAMED, "fashion-mnist", fashion)
    for data_root in (None, root):
        assert str(system) in open_source("fashion-mnist", data_root).train.name(0)
    shards_to_parquet(root / "fashion-mnist", TEN)
    assert "train-00000-of-00001.parquet" in open_source("fashion-mnist", root).train.name(0)
    write_set(root / "FashionMNIST" / "raw")
    assert str(root / "FashionMNIST") in open_source("fashion-mnist", root).train.name(0)


def test_svhn(tmp_path):
    write_svhn(tmp_path / "SVHN")
    source = open_source("svhn", tmp_path)
    assert (source.name, source.digits, len(source.train)) == ("svhn", True, 23)


@pytest.mark.parametrize(
    "folder", ["cifar10", "cifar10/cifar-10-batches-py", "CIFAR10/cifar-10-batches-py", "cifar-10-batches-py"]
)
def test_cifar10_folders(tmp_path, folder):
    write(tmp_path / folder, cifar10_files())
    assert_is_cifar10(open_source("cifar10", tmp_path))
    assert find_source("cifar10", tmp_path) == tmp_path / folder


@pytest.mark.parametrize("folder", [".", "cifar10"])
def test_cifar10_archive(tmp_path, folder):
    (tmp_path / folder).mkdir(exist_ok=True)
    archive = tmp_path / folder / "cifar-10-python.tar.gz"
    write_archive(archive, "cifar-10-batches-py", cifar10_files())
    assert_is_cifar10(open_source("cifar10", tmp_path))


@pytest.mark.parametrize("name", ["cifar+10", "cifar+50"])
def test_cifar_plus_has_the_test_part_of_cifar100_as_unknown(tmp_path, name):
    write(tmp_path / "cifar-10-batches-py", cifar10_files())
    assert find_source(name, tmp_path) is None
    assert "'cifar100' is not under" in refusal(name, tmp_path)
    files = cifar100_files()
    del files["train"]
    write(tmp_path / "cifar-100-python", files)
    source = open_source(name, tmp_path)
    assert source.name == name
    assert len(source.train) == 15
    assert_is(source.foreign, *make_rows(4, 100, 9))
    assert find_source(name, tmp_path) == tmp_path / "cifar-10-batches-py"


@pytest.mark.parametrize("with_train", [False, True])
def test_cifar_plus_from_shards(tmp_path, with_train):
    shards_to_parquet(tmp_path / "cifar10", CIFAR10_CLASSES)
    arrays_to_parquet(tmp_path / "cifar100" / "test-00000-of-00001.parquet", 100, CIFAR100_CLASSES)
    if with_train:
        arrays_to_parquet(tmp_path / "cifar100" / "train-00000-of-00001.parquet", 200, CIFAR100_CLASSES)
    source = open_source("cifar+10", tmp_path)
    assert source.test is not None
    assert source.foreign is not None
    assert (len(source.train), len(source.test)) == (20, 10)
    assert source.foreign.labels.tolist() == list(range(100))
    assert source.foreign.class_names == CIFAR100_CLASSES


def test_cifar_plus_never_takes_training_images_as_unknown(tmp_path):
    shards_to_parquet(tmp_path / "cifar10", CIFAR10_CLASSES)
    arrays_to_parquet(tmp_path / "cifar100" / "train-00000-of-00001.parquet", 200, CIFAR100_CLASSES)
    assert "no test part of CIFAR-100" in refusal("cifar+10", tmp_path)


def test_official_files_come_before_shards(tmp_path):
    shards_to_parquet(tmp_path / "mnist", TEN)
    assert "parquet" in open_source("mnist", tmp_path).train.name(0)
    write_set(tmp_path / "MNIST" / "raw")
    assert "parquet" not in open_source("mnist", tmp_path).train.name(0)


def test_shards_take_the_name_of_the_set_and_its_digits(tmp_path):
    shards_to_parquet(tmp_path / "SVHN" / "data", TEN)
    source = open_source("svhn", tmp_path)
    assert source.test is not None
    assert (source.name, source.digits, len(source.test)) == ("svhn", True, 10)


def test_a_converted_set_alone_in_its_folder_is_that_set(tmp_path):
    train, test = made(20, TEN), made(10, TEN)
    write_parquet(tmp_path / "mnist" / "any.parquet", {"train": train, "test": test})
    source = open_source("mnist", tmp_path)
    assert source.test is not None
    for found, written in ((source.train, train), (source.test, test)):
        assert found.labels.tolist() == written.labels.tolist()
        assert all(np.array_equal(found.read(i), written.read(i)) for i in range(len(written)))


@pytest.mark.parametrize("file", ["train-00000-of-00001.parquet", "all.parquet"])
def test_a_named_set_is_never_tested_on_a_share_of_its_training_images(tmp_path, file):
    arrays_to_parquet(tmp_path / "cifar10" / file, 20, CIFAR10_CLASSES)
    message = refusal("cifar10", tmp_path)
    assert message.startswith(f"{tmp_path / 'cifar10'}: no test part of 'cifar10'")
    assert "add test-*.parquet" in message
    assert open_source(str(tmp_path / "cifar10"), None).test is None, "one's own folder may have one part"


def test_shards_of_another_set_are_refused(tmp_path):
    arrays_to_parquet(tmp_path / "cifar10" / "train-00000-of-00001.parquet", 20, ("cat", "dog"))
    assert "2 classes, but the set has 10" in refusal("cifar10", tmp_path)


def test_shards_in_the_data_root_itself_belong_to_no_set(tmp_path):
    arrays_to_parquet(tmp_path / "train-00000-of-00001.parquet", 20, CIFAR10_CLASSES)
    assert "is not under" in refusal("cifar10", tmp_path)


def test_tinyimagenet_needs_its_two_hundred_classes(tmp_path):
    write_tree(tmp_path / "tiny-imagenet-200")
    assert "3 classes, but the set has 200" in refusal("tinyimagenet", tmp_path)
    more = tuple(f"n9{i:07}" for i in range(197))
    write_tree(tmp_path / "tiny-imagenet-200", WNIDS + more)
    assert open_source("tinyimagenet", tmp_path).train.class_names == tuple(sorted(WNIDS + more))


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["imagenet", "ILSVRC2012"])
def test_imagenet_is_whole_under_both_names(tmp_path, folder):
    write_imagenet_tree(tmp_path / folder)
    for name in ("imagenet-100", "imagenet-200"):
        source = open_source(name, tmp_path)
        assert source.name == name
        assert source.train.labels.tolist() == list(range(1000))


@pytest.mark.slow
@pytest.mark.parametrize("images", ["imagenet", "imagenet-lt", "imagenet-lt/ImageNet"])
def test_imagenet_lt_finds_its_images_and_its_open_set(tmp_path, images):
    write_imagenet_tree(tmp_path / images)
    lists = tmp_path / "imagenet-lt"
    lists.mkdir(exist_ok=True)
    for part, folder in (("train", "train"), ("test", "val")):
        lines = [f"{folder}/n{label:08}/{label}.JPEG {label}\n" for label in range(1000)]
        (lists / f"ImageNet_LT_{part}.txt").write_text("".join(lines))
    (lists / "ImageNet_LT_open.txt").write_text("ILSVRC2010_val_00000001.JPEG -1\n")
    save_image(lists / "ImageNet_LT_open" / "ILSVRC2010_val_00000001.JPEG", 77)
    source = open_source("imagenet-lt", tmp_path)
    assert source.foreign is not None
    assert (source.name, len(source.train), len(source.foreign)) == ("imagenet-lt", 1000, 1)
    assert int(source.foreign.read(0).mean()) == 77


def test_the_data_root_may_come_from_the_environment(tmp_path, monkeypatch):
    write_set(tmp_path / "env" / "mnist")
    monkeypatch.setenv("PMAL_DATA", str(tmp_path / "env"))
    assert open_source("mnist", None).name == "mnist"
    (tmp_path / "given").mkdir()
    assert "is not under" in refusal("mnist", tmp_path / "given")


@pytest.mark.parametrize("name", [info.name for info in list_sources()[1:]])
def test_a_set_that_is_not_there_says_what_was_looked_for(tmp_path, monkeypatch, name):
    monkeypatch.setitem(NAMED, name, dataclasses.replace(NAMED[name], fallback=()))
    known = NAMED[name]
    for root in (None, tmp_path):
        message = refusal(name, root)
        assert "--data-root" in message
        assert "$PMAL_DATA" in message
        assert f"'{name}'" in message
        assert all(file in message for file in (*known.files, "*.parquet"))
        assert find_source(name, root) is None
    assert str(tmp_path) in message
    assert all(folder in message for folder in known.folders)
    assert f"data root {tmp_path / 'gone'}: no such folder" in refusal(name, tmp_path / "gone")
    assert find_source(name, tmp_path / "gone") is None


def test_a_known_name_means_the_set_and_a_path_means_the_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for label in ("zero", "one"):
        save_image(tmp_path / "mnist" / label / "a.jpg", 10)
    assert "needs a data root" in refusal("mnist", None)
    for typed in ("./mnist", str(tmp_path / "mnist"), "mnist/"):
        source = open_source(typed, None)
        assert source.train.class_names == ("one", "zero")
        assert source.name not in NUM_CLASSES, "the published splits would apply to somebody's own folder"


def test_paths_of_every_kind(tmp_path):
    arrays_to_parquet(tmp_path / "shards" / "train-00000-of-00001.parquet", 6, ("a", "b"))
    arrays_to_parquet(tmp_path / "shards" / "test-00000-of-00001.parquet", 4, ("a", "b"))
    arrays_to_parquet(tmp_path / "one.parquet", 8, ("a", "b"))
    x = np.zeros((5, 8, 8, 3), dtype=np.uint8)
    np.savez(tmp_path / "two.npz", images=x, labels=np.array([0, 1, 0, 1, 0]))
    shards = open_source(str(tmp_path / "shards"), None)
    assert shards.test is not None
    assert (len(shards.train), len(shards.test)) == (6, 4)
    assert len(open_source(str(tmp_path / "one.parquet"), None).train) == 8
    assert len(open_source(str(tmp_path / "two.npz"), None).train) == 5


@pytest.mark.parametrize(
    "typed", ["./nothing", "no/such", "gone.parquet", "gone.npz", "~/gone-folder", "..\\x", "~nobody/x"]
)
def test_a_path_that_is_not_there(tmp_path, monkeypatch, typed):
    monkeypatch.chdir(tmp_path)
    assert refusal(typed, None) == f"no such file or folder: {typed}"


@pytest.mark.parametrize(
    ("typed", "nearest"), [("mnits", "mnist"), ("CIFAR-10", "cifar10"), ("tiny-imagenet", "tinyimagenet")]
)
def test_a_misspelled_name_gets_the_nearest_one(tmp_path, monkeypatch, typed, nearest):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=f"did you mean '{nearest}'"):
        open_source(typed, None)


@pytest.mark.parametrize("typed", ["absent", "images", "photos", "birds", "train"])
def test_a_folder_that_is_not_there_is_no_misspelled_set(tmp_path, monkeypatch, typed):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as caught:
        open_source(typed, None)
    assert str(caught.value).startswith(f"'{typed}': no such folder, and no data set of that name")
    assert "did you mean" not in str(caught.value)
    assert "cifar+10" in str(caught.value)


def test_an_empty_name_is_not_the_current_folder():
    with pytest.raises(UsageError, match=r"^'': no such folder"):
        open_source("", None)


def test_a_file_of_another_kind_is_refused(tmp_path):
    (tmp_path / "photo.png").write_bytes(b"x")
    assert "neither a folder nor a .parquet, .npz or .safetensors file" in refusal(
        str(tmp_path / "photo.png"), None
    )


def test_the_sample_is_embedded():
    source = open_source("sample", None)
    assert source.test is not None
    assert (source.name, source.digits) == ("sample", True)
    assert np.bincount(source.train.labels).tolist() == [500] * 10
    assert np.bincount(source.test.labels).tolist() == [100] * 10
    assert source.train.read(0).shape == (28, 28, 1)
    assert find_source("sample", None) is not None


@pytest.fixture
def real(real_data):
    def open_real(name: str):
        if find_source(name, real_data) is None:
            pytest.skip(f"{name} is not under $PMAL_DATA")
        return open_source(name, None)

    return open_real


def counts(samples: Samples | None) -> list[int]:
    assert samples is not None
    return np.bincount(samples.labels, minlength=len(samples.class_names)).tolist()


def test_real_mnist(real):
    source = real("mnist")
    assert counts(source.train) == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert counts(source.test) == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


def test_real_cifar_plus(real):
    source = real("cifar+10")
    assert counts(source.train) == [5000] * 10
    assert counts(source.test) == [1000] * 10
    assert counts(source.foreign) == [100] * 100
    assert source.train.class_names == CIFAR10_CLASSES
    assert source.foreign is not None
    assert source.foreign.class_names == CIFAR100_CLASSES
    assert source.train.read(49_999).shape == source.foreign.read(9_999).shape == (32, 32, 3)


def test_real_tinyimagenet(real):
    source = real("tinyimagenet")
    assert len(source.train.class_names) == 200
    assert counts(source.test) == [50] * 200
    assert set(counts(source.train)) <= {0, 500}
    assert [name[:9] for name in source.train.class_names] == sorted(
        name[:9] for name in source.train.class_names
    )


@pytest.mark.usefixtures("data_root")
def test_real_fashion_mnist():
    if find_source("fashion-mnist", None) is None:
        pytest.skip("Fashion-MNIST is neither under $PMAL_DATA nor installed by Debian's package")
    assert counts(open_source("fashion-mnist", None).train) == [6000] * 10
