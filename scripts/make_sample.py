"""Make the embedded sample from the official MNIST files, under $PMAL_DATA or the folder given as argument.

The first 500 training and the first 100 test images of every digit, in the order of the official files.
"""

import sys
from pathlib import Path

import numpy as np

from pmal.data.samples import Samples
from pmal.data.sources.parquet import write_parquet
from pmal.data.sources.readers import open_source

TARGET = Path(__file__).parents[1] / "src" / "pmal" / "data" / "sample" / "mnist-sample.parquet"


def first_of_each_class(samples: Samples, count: int) -> Samples:
    positions = [np.flatnonzero(samples.labels == label)[:count] for label in range(10)]
    return samples.at(np.sort(np.concatenate(positions)))


def main() -> None:
    source = open_source("mnist", Path(sys.argv[1]) if len(sys.argv) > 1 else None)
    assert source.test is not None
    parts = {"train": first_of_each_class(source.train, 500), "test": first_of_each_class(source.test, 100)}
    write_parquet(TARGET, parts)


if __name__ == "__main__":
    main()
