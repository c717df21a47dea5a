"""Small files that declare gigabytes are refused before memory is taken for them."""

import subprocess
import sys
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

READ = """
import resource, sys
import numpy, pyarrow.parquet, pmal.data.sources.npz, pmal.data.sources.parquet, pmal.data.rows.formats
from pmal.data.sources.published import _unpickle
from pmal.errors import DataError
path, kind = sys.argv[1:]
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (2 << 30),) * 2)
try:
    if kind == "pickle":
        _unpickle.unpickle_arrays(open(path, "rb").read(), path)
    elif kind == "npz":
        pmal.data.sources.npz.open_npz(path)
    elif kind == "rows":
        pmal.data.rows.formats.read_entries(__import__("pathlib").Path(path))
    else:
        train = pmal.data.sources.parquet.open_parquet(path).train
        train.read(0)
except DataError as error:
    print(error)
"""


def refusal(path, kind):
    """What a process says of the file that may take two GiB; a MemoryError would end it with a traceback."""
    done = subprocess.run([sys.executable, "-c", READ, str(path), kind], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_seven_bytes_of_a_pickle(tmp_path):
    file = tmp_path / "test_batch"
    file.write_bytes(b"Nr" + (2**31 - 1).to_bytes(4, "little") + b".")
    assert "holds a NoneType" in refusal(file, "pickle")


def test_a_header_of_gigabytes(tmp_path):
    file, length = tmp_path / "x.npz", 3 << 29
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open("X.npy", "w", force_zip64=True) as member:
            member.write(b"\x93NUMPY\x02\x00" + length.to_bytes(4, "little"))
            for _ in range(length >> 24):
                member.write(b" " * (1 << 24))
        archive.writestr("y.npy", b"")
    assert f"declares {length:,} bytes" in refusal(file, "npz")


def repeated(value, rows):
    """One value that stands in every row, as a file holds it: once."""
    indices = pa.array(np.zeros(rows, np.int8))
    return pa.DictionaryArray.from_arrays(indices, pa.array([value]))


def write(file, **columns):
    options = {"compression": "zstd", "store_schema": False, "dictionary_pagesize_limit": 1 << 24}
    pq.write_table(pa.table(columns), file, **options)
    assert file.stat().st_size < 100_000


def test_one_image_that_stands_for_a_thousand(tmp_path):
    file = tmp_path / "x.parquet"
    write(file, image=repeated(bytes(1 << 21), 2000), label=repeated(0, 2000))
    assert "damaged, or made to do harm" in refusal(file, "parquet")


def test_a_run_of_labels(tmp_path):
    file, rows = tmp_path / "x.parquet", 8_000_000
    write(file, image=pa.nulls(rows, pa.binary()), label=repeated(0, rows))
    assert "declare 512,000,000: damaged" in refusal(file, "parquet")


def test_a_text_that_stands_for_many(tmp_path):
    file = tmp_path / "x.parquet"
    write(file, files=repeated("x" * (1 << 21), 2000))
    assert "damaged, or made to do harm" in refusal(file, "rows")


def test_a_part_that_stands_for_many(tmp_path):
    file, rows = tmp_path / "x.parquet", 2000
    image = repeated(b"x", rows)
    write(file, image=image, label=repeated(0, rows), split=repeated("x" * (1 << 21), rows))
    assert "has split 'xxxx" in refusal(file, "parquet")
