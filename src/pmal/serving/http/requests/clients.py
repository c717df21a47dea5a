"""Who asks: a client's name, its key, and its share of requests per second."""

import hashlib
import hmac
import math
from base64 import b64decode
from collections import OrderedDict
from collections.abc import Callable, Collection
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from time import monotonic

from pmal.errors import DataError

LEAST_KEY = 16
MOST_CLIENTS = 10_000
"""Most clients that are remembered. The one that asked longest ago is forgotten: its share is full again."""


def client_name(address: str) -> str:
    """Return what limits are counted by: an address, of IPv6 the network that one customer is given.

    >>> client_name("192.0.2.7"), client_name("2001:db8::1:2"), client_name("::ffff:192.0.2.7")
    ('192.0.2.7', '2001:db8::/64', '192.0.2.7')
    """
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(found, IPv6Address):
        return str(found)
    if found.ipv4_mapped:
        return str(found.ipv4_mapped)
    return f"{IPv6Address(int(found) >> 64 << 64)}/64"


def read_keys(file: Path) -> frozenset[bytes]:
    """Return the digests of the keys in a file, one on each line. Raises `DataError` if it has none."""
    try:
        lines = [line.strip() for line in file.read_text().splitlines()]
    except (OSError, UnicodeError) as error:
        raise DataError(
            f"{file}: cannot be read ({getattr(error, 'strerror', None) or 'not text'})"
        ) from None
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise DataError(f"{file}: no key in it: write one on each line")
    if min(map(len, keys)) < LEAST_KEY:
        raise DataError(f"{file}: a key of less than {LEAST_KEY} characters: make a longer one")
    return frozenset(map(_digest, keys))


def has_key(header: str, keys: Collection[bytes]) -> bool:
    """Return whether an Authorization header holds one of the keys, as Bearer or as the password of Basic.

    Every key is compared, in a time that says nothing about them.

    >>> keys = {_digest("a key of 21 characters")}
    >>> has_key("Bearer a key of 21 characters", keys), has_key("Bearer another", keys), has_key("", keys)
    (True, False, False)
    """
    scheme, _, given = header.partition(" ")
    if scheme.lower() == "basic":
        try:
            given = b64decode(given, validate=True).decode().partition(":")[2]
        except ValueError:
            return False
    elif scheme.lower() != "bearer":
        return False
    found = _digest(given.strip())
    return sum(hmac.compare_digest(found, key) for key in keys) > 0


class Rates:
    """So many requests per second of each client, on average; twice as many at once."""

    def __init__(self, per_second: float, clock: Callable[[], float] = monotonic) -> None:
        self._rate, self._most, self._clock = per_second, max(1.0, 2 * per_second), clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_for(self, client: str) -> float:
        """Return 0 if a client may ask now, and else the seconds until it may.

        >>> now = [0.0]
        >>> rates = Rates(0.5, lambda: now[0])
        >>> [rates.wait_for("a"), rates.wait_for("a"), rates.wait_for("b")]
        [0.0, 2.0, 0.0]
        >>> now[0] = 2.0
        >>> rates.wait_for("a")
        0.0
        """
        if not self._rate:
            return 0.0
        now = self._clock()
        left, before = self._left.pop(client, (self._most, now))
        left = min(self._most, left + (now - before) * self._rate)
        allowed = left >= 1
        self._left[client] = (left - allowed, now)
        if len(self._left) > MOST_CLIENTS:
            self._left.popitem(last=False)
        return 0.0 if allowed else max((1 - left) / self._rate, math.ulp(0.0))


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
