"""Images that cannot be answered."""

import struct
import zlib


def huge_png():
    body = b"IHDR" + struct.pack(">IIBBBBB", 10_000, 6_000, 8, 2, 0, 0, 0)
    head = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + body + struct.pack(">I", zlib.crc32(body))
    return head + b"\0\0\1\0IDAT"


def spoil(photos):
    """Add what cannot be answered; the words that its reason has."""
    (photos / "huge.png").write_bytes(huge_png())
    (photos / "half.png").write_bytes((photos / "kind0" / "0.png").read_bytes()[:50])
    (photos.parent / "empty").mkdir()
    return {
        photos.parent / "gone.png": "No such file",
        photos.parent / "empty": "no images",
        photos / "half.png": "PNG",
        photos / "huge.png": "limit of 50000000",
    }
