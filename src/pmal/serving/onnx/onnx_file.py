"""The little of the ONNX format that must be known before a runtime is trusted with a foreign file.

An ONNX file is one protobuf message. What it says of itself is read here, and every tensor of it is looked at
for a reference to another file: a runtime would open that, wherever it lies. Needs no library.
"""

from collections.abc import Iterator
from hashlib import sha256

from pmal.errors import DataError

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
UNSEALED = "0" * 64
"""What stands for the checksum while it is computed."""
_FIELDS_LIMIT = 1_000_000
"""Fields that are looked at, at most; the largest networks have some ten thousand."""

# Which fields of a message lead to tensors (field number: kind of message), as in onnx.proto.
_CHILDREN: dict[str, dict[int, str]] = {
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {},
}
_METADATA, _KEY, _VALUE = 14, 1, 2
_EXTERNAL_DATA, _DATA_LOCATION = 13, 14


def read_metadata(data: bytes) -> dict[str, str]:
    """Return the metadata of an ONNX file, which must hold all its tensors itself. Raises `DataError`."""
    try:
        return _walk(memoryview(data))
    except (IndexError, UnicodeDecodeError):
        raise DataError("not an ONNX file") from None


def seal(data: bytes) -> bytes:
    """Return the file with its checksum in the place of the zeros that stand for it."""
    return data.replace(UNSEALED.encode(), sha256(data).hexdigest().encode(), 1)


def check_seal(data: bytes, digest: str) -> None:
    """Refuse a file that was changed. Its checksum is that of it with zeros in the place of the checksum."""
    begin, end = data.partition(digest.encode() or b"?")[::2]
    found = sha256(begin)
    for part in (UNSEALED.encode(), end):
        found.update(part)
    if len(digest) != len(UNSEALED) or found.hexdigest() != digest:
        raise DataError("damaged (not the checksum in its metadata): copy or export it again")


def _walk(data: memoryview) -> dict[str, str]:
    metadata: dict[str, str] = {}
    waiting, seen = [("model", data)], 0
    while waiting:
        kind, message = waiting.pop()
        for number, value in _fields(message):
            seen += 1
            if seen > _FIELDS_LIMIT:
                raise DataError("has more parts than any model of pmal")
            if kind == "tensor" and (number == _EXTERNAL_DATA or (number == _DATA_LOCATION and value != 0)):
                raise DataError("keeps data in other files, which are not read: export it again with pmal")
            if isinstance(value, int):
                continue
            if kind == "model" and number == _METADATA:
                entry = {field: bytes(text) for field, text in _fields(value) if not isinstance(text, int)}
                metadata[entry.get(_KEY, b"").decode()] = entry.get(_VALUE, b"").decode()
            elif number in _CHILDREN[kind]:
                waiting.append((_CHILDREN[kind][number], value))
    return metadata


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield number and value of each field; IndexError if the bytes are no message."""
    at, end = 0, len(message)
    while at < end:
        key, at = _varint(message, at)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            value, at = _varint(message, at)
            yield number, value
            continue
        if wire == _BYTES:
            size, at = _varint(message, at)
        elif wire in (_FIXED64, _FIXED32):
            size = 8 if wire == _FIXED64 else 4
        else:
            raise IndexError
        if not number or at + size > end:
            raise IndexError
        if wire == _BYTES:
            yield number, message[at : at + size]
        at += size


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise IndexError
