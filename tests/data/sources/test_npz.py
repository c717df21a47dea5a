"""The .npz reader: every accepted spelling and layout, and what is refused before it costs memory."""

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pmal._runtime import memory
from pmal.data.samples import ArrayStore, Pixels
from pmal.data.sources.npz import open_npz
from pmal.errors import DataError

RNG = np.random.default_rng(0)
COLOR = RNG.integers(0, 256, (6, 5, 7, 3), dtype=np.uint8)
LABELS = np.array([0, 1, 2, 2, 1, 0])


def save(path: Path, **arrays: Any) -> Path:
    np.savez_compressed(path, **arrays)
    return path


def pixels_of(path: Path) -> Pixels:
    store = open_npz(path).train.store
    assert isinstance(store, ArrayStore)
    return store.pixels


@pytest.mark.parametrize(
    "names", [("x_train", "y_train"), ("train_images", "train_labels"), ("images", "labels"), ("X", "y")]
)
def test_one_part(tmp_path: Path, names: tuple[str, str]) -> None:
    path = save(tmp_path / "mine.npz", **{names[0]: COLOR, names[1]: LABELS})
    source = open_npz(path)
    assert source.name == "mine"
    assert source.test is None
    assert source.train.labels.tolist() == LABELS.tolist()
    assert source.train.class_names == ("0", "1", "2")
    assert np.array_equal(source.train.read(4), COLOR[4])
    assert source.train.name(4) == f"{path}: {names[0]}[4]"


@pytest.mark.parametrize(
    "names",
    [
        ("x_train", "y_train", "x_test", "y_test"),
        ("train_images", "train_labels", "test_images", "test_labels"),
    ],
)
def test_two_parts_share_their_classes(tmp_path: Path, names: tuple[str, str, str, str]) -> None:
    arrays = dict(zip(names, (COLOR, LABELS, COLOR[:2], np.array([4, 0])), strict=True))
    source = open_npz(save(tmp_path / "x.npz", **arrays))
    assert source.test is not None
    assert source.train.class_names == source.test.class_names == ("0", "1", "2", "3", "4")
    assert source.test.labels.tolist() == [4, 0]
    assert np.array_equal(source.test.read(1), COLOR[1])


def test_class_names_and_labels_in_a_column(tmp_path: Path) -> None:
    names = np.array(["größe", "<b>", "c"])
    train = open_npz(save(tmp_path / "x.npz", images=COLOR, labels=LABELS[:, None], class_names=names)).train
    assert train.class_names == ("größe", "<b>", "c")
    assert train.labels.tolist() == LABELS.tolist()


def test_layouts(tmp_path: Path) -> None:
    planes = COLOR.transpose(0, 3, 1, 2)
    assert np.array_equal(pixels_of(save(tmp_path / "chw.npz", X=planes, y=LABELS)), COLOR)
    flat = COLOR[:, :3]  # three rows, and three channels at the end
    assert np.array_equal(pixels_of(save(tmp_path / "flat.npz", X=flat, y=LABELS)), flat)
    gray = COLOR[:, :, :, 0]
    for layout in (gray, gray[:, None], gray[:, :, :, None]):
        assert np.array_equal(pixels_of(save(tmp_path / "gray.npz", X=layout, y=LABELS))[:, :, :, 0], gray)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_floats_in_0_to_1_are_scaled(tmp_path: Path, kind: type) -> None:
    path = save(tmp_path / "x.npz", X=(COLOR / 255).astype(kind), y=LABELS)
    assert np.array_equal(pixels_of(path), COLOR)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_floats_are_rounded_to_the_nearest(tmp_path: Path, kind: type) -> None:
    values = np.linspace(0, 1, 6 * 5 * 7).reshape(6, 5, 7).astype(kind)
    found = pixels_of(save(tmp_path / "x.npz", X=values, y=LABELS))[..., 0]
    assert np.array_equal(found, np.rint(values.astype(np.float64) * 255))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"X": COLOR}, "needs the arrays x_train/y_train or train_images/train_labels or images/labels "
         "or X/y or embeddings/labels; it has: 'X'"),
        ({"X": COLOR[:3], "y": LABELS}, "X: 3 images, but 6 labels"),
        ({"X": COLOR[0, 0], "y": LABELS}, "X: shape 7x3 is not (N, H, W)"),
        ({"X": np.zeros((6, 5, 7, 4), np.uint8), "y": LABELS}, "X: shape 6x5x7x4 is not"),
        ({"X": COLOR[:0], "y": LABELS[:0]}, "X: shape 0x5x7x3 is not"),
        ({"X": COLOR.astype(np.int64), "y": LABELS}, "X: int64 pixels: convert them to uint8"),
        ({"X": COLOR.astype(np.float32), "y": LABELS}, "X: float pixels outside 0..1 or not finite"),
        ({"X": COLOR * np.nan, "y": LABELS}, "X: float pixels outside 0..1 or not finite"),
        ({"X": COLOR / 255 - 0.1, "y": LABELS}, "X: float pixels outside 0..1"),
        ({"X": COLOR, "y": LABELS / 2}, "y: float64 of shape 6, not integers"),
        ({"X": COLOR, "y": np.eye(6, dtype=int)}, "y: int64 of shape 6x6, not integers"),
        ({"X": COLOR, "y": LABELS - 1}, "y[0] is -1, not in 0.."),
        ({"X": COLOR, "y": LABELS * 10**9}, "y[1] is 1000000000, not in 0.."),
        ({"X": COLOR, "y": LABELS, "class_names": np.array(["a", "b"])}, "y[2] is 2, not in 0..1"),
        ({"X": COLOR, "y": LABELS, "class_names": np.arange(3)}, "class_names is not a list of strings"),
        ({"X": COLOR, "y": LABELS, "class_names": np.array([["a"], ["b"], ["c"]])},
         "class_names is not a list of strings"),
        ({"X": COLOR, "y": np.array([{}] * 6)}, "array y is not readable (Object arrays cannot be loaded"),
    ],
)  # fmt: skip
def test_unusable_arrays(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    path = save(tmp_path / "x.npz", **arrays)
    with pytest.raises(DataError) as caught:
        open_npz(path)
    assert str(caught.value).startswith(f"{path}: {message}")
    assert "\n" not in str(caught.value)


def test_unusable_files(tmp_path: Path) -> None:
    whole = save(tmp_path / "x.npz", X=COLOR, y=LABELS).read_bytes()
    np.save(tmp_path / "array.npy", COLOR)
    for content in (
        b"",
        b"text",
        whole[:100],
        whole[: len(whole) // 2],
        (tmp_path / "array.npy").read_bytes(),
    ):
        (tmp_path / "broken.npz").write_bytes(content)
        with pytest.raises(DataError, match=r"broken\.npz: not readable as \.npz"):
            open_npz(tmp_path / "broken.npz")
    with pytest.raises(DataError, match=r"gone\.npz: no such file"):
        open_npz(tmp_path / "gone.npz")


def test_damaged_contents_name_the_array(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, X=np.zeros((100, 32, 32, 3), np.uint8), y=np.zeros(100, int))
    data = bytearray(path.read_bytes())
    data[100_000] ^= 0xFF  # one pixel: the checksum in the zip tells
    path.write_bytes(data)
    with pytest.raises(DataError, match="array X is not readable"):
        open_npz(path)


@pytest.mark.parametrize(
    "header",
    [
        b"{'descr': '|u1', 'fortran_order': False, 'shape': (6, 4, 4, ",
        b"{'descr': '|u1', 'fortran_order': False, 'shape': (6, 'a'), }",
        b"{'descr': '|u1', 'fortran_order': False, 'shape': (-6, 4, 4), }",
        b"{[]: 1}",
        b"'''",
        b"  x\n y",
        b"(" * 5000,
        b" " * 20_000,
        b"\0",
    ],
    ids=lambda header: repr(header)[:30],
)
def test_a_damaged_header_is_refused_in_one_line(tmp_path: Path, header: bytes) -> None:
    labels = io.BytesIO()
    np.save(labels, LABELS)
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("X.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
        archive.writestr("y.npy", labels.getvalue())
    with pytest.raises(DataError, match=r"x\.npz: ") as caught:
        open_npz(tmp_path / "x.npz")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("shape", ["(1000000, 1000, 1000, 3)", "(99999999999, 99999999999, 99999999999)"])
def test_a_declared_giant_is_refused_on_its_header(tmp_path: Path, shape: str) -> None:
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (117 - len(header)) + b"\n"
    labels = io.BytesIO()
    np.save(labels, LABELS)
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("X.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
        archive.writestr("y.npy", labels.getvalue())
    with pytest.raises(DataError, match=r"bomb\.npz: its arrays: [\d,]+ bytes declare [\d,]+: damaged"):
        open_npz(tmp_path / "bomb.npz")


def test_all_arrays_together_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path / "x.npz", X=COLOR, y=LABELS, unused=np.zeros(10_000))
    size = COLOR.nbytes + LABELS.nbytes
    monkeypatch.setattr(memory, "memory_bytes", lambda: size)
    assert len(open_npz(path).train) == 6
    monkeypatch.setattr(memory, "memory_bytes", lambda: size - 1)
    with pytest.raises(DataError, match=f"takes {size:,} bytes, more than the {size - 1:,}"):
        open_npz(path)


@pytest.mark.slow
@pytest.mark.parametrize("packed", [False, True])
def test_a_damaged_byte_is_refused_or_does_not_matter(tmp_path: Path, packed: bool) -> None:
    path = tmp_path / "x.npz"
    (np.savez_compressed if packed else np.savez)(path, X=COLOR, y=LABELS)
    whole, refusals = path.read_bytes(), []
    for place in range(0, len(whole), 2):
        for change in (0x01, 0xFF):
            data = bytearray(whole)
            data[place] ^= change
            path.write_bytes(data)
            try:
                open_npz(path)
            except DataError as error:
                refusals.append(str(error))
    assert all(str(path) in text and "\n" not in text for text in refusals)
    assert len(refusals) > len(whole) // 4
