"""The one log of a service: on standard error, never more than a few lines of a kind at a time."""

import json
import logging
import logging.config
import time
from collections.abc import Callable

LINES, SECONDS = 5, 10.0
"""Lines of one kind in so many seconds; what is over is counted."""
MOST_KINDS = 1000
LOG, ACCESS = logging.getLogger("pmal.serve"), logging.getLogger("pmal.access")


class Sparing(logging.Filter):
    """Let the first lines of a kind through, and say later how many others there were."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._kinds: dict[tuple[str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is to be written. A client can cause no more than these few lines."""
        if record.name == ACCESS.name:  # complete, or it would be worth nothing
            return True
        kind, now = (record.name, str(record.msg)[:80]), self._clock()
        begin, count = self._kinds.get(kind, (now, 0))
        if len(self._kinds) > MOST_KINDS:
            self._kinds.clear()
        if now - begin >= SECONDS:
            if count > LINES:
                record.msg = f"{record.getMessage()} ({count - LINES} such lines were left out)"
                record.args = None
            begin, count = now, 0
        self._kinds[kind] = (begin, count + 1)
        return count < LINES


class JsonLines(logging.Formatter):
    """An object on each line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return time, level and message of a record, or the fields of a request."""
        fields = getattr(record, "fields", None) or {"message": super().format(record)}
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        start = {"time": f"{stamp}.{int(record.msecs):03d}Z", "level": record.levelname.lower()}
        return json.dumps(start | fields)


def set_up_log(access: bool) -> None:
    """Have all that libraries and the service say written to standard error.

    Args:
        access: a line for each request as well, and every line as JSON.
    """
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "filters": {"sparing": {"()": Sparing}},
            "formatters": {"plain": {"format": "%(message)s"}, "json": {"()": JsonLines}},
            "handlers": {
                "log": {
                    "class": "logging.StreamHandler",
                    "filters": ["sparing"],
                    "formatter": "json" if access else "plain",
                }
            },
            "root": {"handlers": ["log"], "level": "WARNING"},
            "loggers": {
                LOG.name: {"level": "INFO"},
                ACCESS.name: {"level": "INFO" if access else "CRITICAL"},
                # What a client did wrong is in its answer, and in the figures.
                "python_multipart": {"level": "CRITICAL"},
                "PIL": {"level": "CRITICAL"},
                "uvicorn": {"level": "ERROR"},
            },
        }
    )
