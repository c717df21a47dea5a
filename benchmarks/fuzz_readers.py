"""Every reader of foreign files, with a small file of its kind to begin from."""

import contextlib
import gzip
import io
import json
import pickle
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from benchmarks.fuzz_http import read_http, requests

Read = Callable[[Path], object]
Seeds = Callable[[Path], Iterable[bytes]]
"""Given an empty folder: the contents of good files."""

PIXELS: NDArray[np.uint8] = np.random.default_rng(0).integers(0, 256, (6, 12, 12, 3), dtype=np.uint8)
LABELS = np.array([0, 1, 0, 1, 0, 1])
ROWS = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)


def _saved(folder: Path, name: str, write: Callable[[Path], object]) -> bytes:
    write(folder / name)
    return (folder / name).read_bytes()


def _npz(**arrays: NDArray[np.generic]) -> Iterable[bytes]:
    for save in (np.savez, np.savez_compressed):
        buffer = io.BytesIO()
        save(buffer, **arrays)  # type: ignore[operator]
        yield buffer.getvalue()


def _read_npz(path: Path) -> object:
    from pmal.data.sources.npz import open_npz

    return open_npz(path)


def _read_rows(path: Path) -> object:
    from pmal.data.rows.formats import read_entries
    from pmal.data.sources.embedding_files import open_embeddings

    read_entries(path)
    return open_embeddings(path)


def _safetensors(folder: Path) -> Iterable[bytes]:
    from safetensors.numpy import save

    texts = {"class_names": json.dumps(["a", "b"])}
    yield save({"embeddings": ROWS, "labels": LABELS}, texts)


def _parquet_images(folder: Path) -> Iterable[bytes]:
    from pmal.data.samples import ArrayStore, Samples
    from pmal.data.sources.parquet import write_parquet

    samples = Samples.whole(ArrayStore("x", PIXELS), LABELS, ("a", "b"))
    yield _saved(folder, "one.parquet", lambda path: write_parquet(path, {"train": samples}))
    both = {"train": samples, "test": samples}
    yield _saved(folder, "two.parquet", lambda path: write_parquet(path, both))


def _read_parquet_images(path: Path) -> object:
    from pmal.data.samples import BadImage
    from pmal.data.sources.parquet import open_parquet

    source = open_parquet(path)
    for position in range(min(len(source.train), 50)):
        try:
            source.train.read(position)
        except BadImage:
            continue
    return source


def _parquet_rows(folder: Path) -> Iterable[bytes]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {"embedding": ROWS.tolist(), "label": ["a", "b"] * 3, "file": [f"{i}.png" for i in range(6)]}
    for compression in ("none", "zstd"):
        yield _saved(
            folder,
            f"{compression}.parquet",
            lambda path, c=compression: pq.write_table(pa.table(columns), path, compression=c),  # type: ignore[misc]
        )


def _idx(folder: Path) -> Iterable[bytes]:
    head = bytes([0, 0, 8, 3]) + np.array([6, 12, 12], ">u4").tobytes()
    yield head + PIXELS[..., 0].tobytes()
    yield gzip.compress(head + PIXELS[..., 0].tobytes(), mtime=0)


def _read_idx(path: Path) -> object:
    from pmal.data.sources.published.idx import read_idx

    return read_idx(path)


def _cifar(folder: Path) -> Iterable[bytes]:
    for protocol in (0, 2):
        yield pickle.dumps({b"labels": [3, 4], b"batch_label": b"x", b"data": b"\0" * 64}, protocol=protocol)
    yield _python2_batch(bytes(3072))


def _python2_batch(raw: bytes) -> bytes:
    """As Python 2 wrote CIFAR: protocol 2, strings as bytes, and numpy's own globals."""
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    kind = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    state = b"(K\x01K\x01M\x00\x0c\x86" + kind + b"\x89T" + len(raw).to_bytes(4, "little") + raw + b"tb"
    return b"\x80\x02}(U\x06labels]K\x03aU\x04data" + array + state + b"u."


def _read_cifar(path: Path) -> object:
    from pmal.data.sources.published.cifar import _parse_pickled

    return _parse_pickled("labels")(path.read_bytes(), path.name)


def _svhn(folder: Path) -> Iterable[bytes]:
    from scipy.io import savemat

    images = np.zeros((32, 32, 3, 2), np.uint8)
    for packed in (False, True):
        buffer = io.BytesIO()
        savemat(buffer, {"X": images, "y": np.array([[1], [10]], np.uint8)}, do_compression=packed)
        yield buffer.getvalue()


def _read_svhn(path: Path) -> object:
    from pmal.data.sources.published.svhn import _read_part

    return _read_part(path)


def _toml(folder: Path) -> Iterable[bytes]:
    from pmal.config import RunConfig, to_settings, to_toml

    yield to_toml(to_settings(RunConfig())).encode()


def _read_toml(path: Path) -> object:
    from pmal.config import RunConfig, build, read_recipe
    from pmal.run.run_folder import read_config

    read_config(path.parent)
    return build(RunConfig, read_recipe(str(path)))


def _bundle(folder: Path) -> Iterable[bytes]:
    from pmal.rejection.bundle.saving import save_model
    from tests.serving.tiny_model import make_model

    save_model(folder / "model", make_model())
    yield (folder / "model" / "model.json").read_bytes()


def _read_bundle(path: Path) -> object:
    from pmal.rejection.bundle.layout import parse_json
    from pmal.rejection.bundle.record import read_record

    return read_record(parse_json(path, path.read_bytes()))


def _ledger(folder: Path) -> Iterable[bytes]:
    results = sorted(Path("benchmarks/results").glob("softmax/*.json"))
    for path in results[:2]:
        yield path.read_bytes()


def _read_ledger(path: Path) -> object:
    from pmal._runtime.files import read_events
    from pmal.benchmark.ledger import read_result

    read_events(path)
    found = read_result(path)
    return (found.score, found.passes, found.second_epochs, found.accuracy(), found.auroc(found.score))


def _lists(folder: Path) -> Iterable[bytes]:
    yield b"train/n01440764/a.JPEG 0\ntrain/n01443537/b.JPEG 1\n"
    yield b"val_0.JPEG\tn01440764\t0\t32\t44\t62\n"


def _read_lists(path: Path) -> object:
    from pmal.data.sources.published.imagenet import read_list
    from pmal.data.sources.published.tinyimagenet import _read_annotations
    from pmal.errors import DataError

    with contextlib.suppress(DataError):
        read_list(path)
    return _read_annotations(path, ("n01440764",))


def _images(folder: Path) -> Iterable[bytes]:
    picture = Image.fromarray(PIXELS[0])
    turned = Image.Exif()
    turned[0x0112] = 6
    for name in ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM"):
        buffer = io.BytesIO()
        picture.save(buffer, name, **({"exif": turned} if name in ("JPEG", "PNG", "WEBP") else {}))
        yield buffer.getvalue()
    for name, options in {"JPEG": {"progressive": True}, "TIFF": {"compression": "tiff_lzw"}}.items():
        buffer = io.BytesIO()
        picture.save(buffer, name, **options)
        yield buffer.getvalue()


def _read_image(path: Path) -> object:
    from pmal.data.decoding.decode import decode, decode_fitted, examine, verify
    from pmal.data.samples import BadImage
    from pmal.errors import DataError

    data = path.read_bytes()
    for look in (verify, lambda d: decode_fitted(d, 8, 1), lambda d: examine(d, 8), decode):
        try:
            found = look(data)
        except BadImage as reason:
            refused = str(reason)
            found = None
    if found is None:
        raise DataError(refused)
    return found


def _onnx(folder: Path) -> Iterable[bytes]:
    from onnx import helper

    graph = helper.make_graph([helper.make_node("Identity", ["a"], ["b"])], "g", [], [])
    model = helper.make_model(graph)
    for key, value in {"format": "pmal-onnx", "version": "1", "classes": '["a"]'}.items():
        model.metadata_props.add(key=key, value=value)
    yield model.SerializeToString()


def _read_onnx(path: Path) -> object:
    from pmal.serving.onnx.onnx_file import read_metadata
    from pmal.serving.onnx.onnx_model import OnnxHeader

    return OnnxHeader.from_metadata(read_metadata(path.read_bytes()))


def _tables(folder: Path) -> Iterable[bytes]:
    yield b"file,group,name\na.png,1,fox\nb.png,1,fox\nc.png,2,\n"
    yield b'\xef\xbb\xbffile,name\n"a, b.png","owl"\n'


def _read_table(path: Path) -> object:
    from pmal.reporting.page.discovery.names_table import read_names

    return read_names(path)


def _rows_json(folder: Path) -> Iterable[bytes]:
    yield json.dumps({"embeddings": ROWS.tolist()}).encode()


def _read_rows_json(path: Path) -> object:
    from pmal.errors import DataError
    from pmal.serving.http.requests.refusals import Refused
    from pmal.serving.http.requests.row_requests import pack_rows

    try:
        return pack_rows(path.read_bytes(), 64)
    except Refused as refused:
        raise DataError(refused.reason) from None


READERS: dict[str, tuple[str, Seeds, Read]] = {
    "npz images": ("x.npz", lambda _: _npz(X=PIXELS, y=LABELS), _read_npz),
    "npz embeddings": (
        "x.npz",
        lambda _: _npz(embeddings=ROWS, labels=LABELS, class_names=np.array(["a", "b"])),
        _read_rows,
    ),
    "safetensors": ("x.safetensors", _safetensors, _read_rows),
    "Parquet images": ("x.parquet", _parquet_images, _read_parquet_images),
    "Parquet embeddings": ("x.parquet", _parquet_rows, _read_rows),
    "idx": ("x-idx3-ubyte", _idx, _read_idx),
    "CIFAR pickle": ("test_batch", _cifar, _read_cifar),
    "SVHN mat": ("train_32x32.mat", _svhn, _read_svhn),
    "TOML": ("config.toml", _toml, _read_toml),
    "model.json": ("model.json", _bundle, _read_bundle),
    "ledger JSON": ("cell.json", _ledger, _read_ledger),
    "lists": ("list.txt", _lists, _read_lists),
    "images": ("image", _images, _read_image),
    "ONNX metadata": ("x.onnx", _onnx, _read_onnx),
    "CSV of names": ("names.csv", _tables, _read_table),
    "JSON of rows": ("rows.json", _rows_json, _read_rows_json),
    "HTTP": ("request", requests, read_http),
}
"""By name: what the file is called, good ones, and how it is read."""


def seeds_of(name: str) -> list[bytes]:
    """Return good files of one kind."""
    with tempfile.TemporaryDirectory() as folder:
        return list(READERS[name][1](Path(folder)))
