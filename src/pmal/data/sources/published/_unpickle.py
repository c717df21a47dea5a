"""Reads CIFAR's pickles without running anything that a pickle names.

The official files need three globals, all numpy's. Each is answered by a stand-in that stores what it is
given; numpy's own reconstruction code never sees the file. Every other global is refused.
"""

import io
import math
import pickle
from typing import ClassVar, Literal

import numpy as np

from pmal.data.samples import Pixels
from pmal.errors import DataError, first_line


class _DtypeStandIn:
    """Remembers the type code, which Python 2 wrote as bytes."""

    __slots__ = ("code",)

    def __init__(self, code: object, *_rest: object) -> None:
        self.code = code.decode("latin1") if isinstance(code, bytes) else code

    def __setstate__(self, state: object) -> None:
        """Ignore byte order and alignment: they mean nothing for single bytes."""


class _ArrayStandIn:
    """Takes the state of a pickled array and keeps it only if it is one of plain bytes."""

    __slots__ = ("pixels",)

    def __init__(self, *_rest: object) -> None:
        self.pixels: Pixels = np.empty(0, dtype=np.uint8)

    def __setstate__(self, state: object) -> None:
        match state:
            case (int(), tuple(shape), _DtypeStandIn(code="u1"), by_column, bytes(raw)):
                self.pixels = _filled(shape, raw, "F" if by_column else "C")
            case (_, _, _DtypeStandIn(code=code), *_) if code != "u1":
                raise _RefusedError(
                    f"an array of type {str(code)[:20]!r}, but only unsigned bytes are accepted"
                )
            case _:
                raise _RefusedError("an array in a form that CIFAR's files do not use")


def _filled(shape: tuple[object, ...], raw: bytes, order: Literal["C", "F"]) -> Pixels:
    axes = [axis for axis in shape if isinstance(axis, int) and axis >= 0]
    if len(axes) != len(shape) or math.prod(axes) != len(raw):
        raise _RefusedError(f"an array whose {len(raw)} values do not fill its shape")
    return np.frombuffer(raw, dtype=np.uint8).reshape(axes, order=order)


class _RefusedError(Exception):
    """What the pickle asked for."""


# Both classes define __setstate__, so that a pickle cannot set attributes on the classes themselves either.
_ADMITTED: dict[tuple[str, str], type] = {
    ("numpy.core.multiarray", "_reconstruct"): _ArrayStandIn,
    ("numpy", "ndarray"): _ArrayStandIn,
    ("numpy", "dtype"): _DtypeStandIn,
}


class _Unpickler(pickle._Unpickler):
    """The reader that is written in Python, which takes memory for what is there.

    That in C makes room for place 2,147,483,647 of its memory when seven bytes name it. Byte arrays, which
    Python 2 did not write, would be made as long as they say in either.
    """

    dispatch: ClassVar = {
        code: load for code, load in pickle._Unpickler.dispatch.items() if code != pickle.BYTEARRAY8[0]
    }

    def find_class(self, module: str, name: str) -> type:
        try:
            return _ADMITTED[module, name]
        except KeyError:
            raise _RefusedError(f"the forbidden global {f'{module}.{name}'[:100]!r}") from None


def unpickle_arrays(data: bytes, origin: str) -> dict[str, object]:
    """Return Python 2's pickle of a dictionary of plain values and byte arrays; errors name `origin`."""
    try:
        content = _Unpickler(io.BytesIO(data), encoding="bytes").load()
    except _RefusedError as refused:
        raise DataError(f"{origin}: refused: it asks for {refused}; fetch the official file") from None
    except Exception as error:  # a malformed pickle makes the interpreter's reader raise nearly anything
        reason = first_line(error)
        raise DataError(f"{origin}: not a complete pickle ({reason}); fetch the file again") from error
    if not isinstance(content, dict):
        raise DataError(f"{origin}: holds a {type(content).__name__}, not CIFAR's dictionary")
    return {key.decode("latin1"): _plain(value) for key, value in content.items() if isinstance(key, bytes)}


def _plain(value: object) -> object:
    return value.pixels if isinstance(value, _ArrayStandIn) else value
