"""How a command starts."""

import pytest

from pmal._runtime.progress import Silent
from pmal.commands.options import checked, start_display
from pmal.errors import UsageError

pytestmark = pytest.mark.usefixtures("handlers")


def test_work_that_cannot_be_shared_is_refused_in_several_processes(monkeypatch):
    assert isinstance(start_display(True, "nothing was written"), Silent)
    words = {"RANK": 1, "WORLD_SIZE": 2, "LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 2}
    for name, value in (words | {"MASTER_ADDR": "localhost", "MASTER_PORT": 1}).items():
        monkeypatch.setenv(name, str(value))
    with pytest.raises(UsageError, match="start others without torchrun"):
        start_display(True, "nothing was written")


def test_wrong_settings_are_told_with_where_they_stand():
    assert checked({"seed": 3}) == {"seed": 3}
    with pytest.raises(UsageError, match=r"^mine\.toml: .*seeed"):
        checked({"seeed": 3}, "mine.toml: ")
