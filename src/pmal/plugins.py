"""Names that other packages add: methods, scores, encoders and sources.

A plugin is a Python module that registers names when it is imported. It is imported when the user asks for it
(`--plugin MODULE`, or an import of their own), or when a name is met that an installed package announces as
an entry point, such as `centroid = "my_package.head"` in the group `pmal.methods`. Nothing else is imported:
of a module that a file names, such as a saved model, the user is told that it is missing.
"""

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import Any, Generic, TypeVar

from pmal.errors import DataError, UsageError, first_line

Thing = TypeVar("Thing")

_named: list[str] = []


class Registry(Mapping[str, Thing], Generic[Thing]):
    """What is registered under names of one kind: ours, and those of plugins, imported when they are met.

    Args:
        kind: What the names stand for, such as "method"; the entry points are of the group `pmal.methods`.
        ours: Registers the names of this package that are not registered when it is imported.

    >>> colors = Registry[int]("color")
    >>> colors.register("red", 0xFF0000, "my_colors")
    >>> colors["red"], "blue" in colors, colors.origin("red")
    (16711680, False, 'my_colors')
    """

    def __init__(self, kind: str, ours: Callable[[], object] = lambda: None) -> None:
        self.kind, self._ours = kind, ours
        self._things: dict[str, tuple[Thing, str]] = {}

    def register(self, name: str, thing: Thing, module: str | None) -> None:
        """Add a name, on behalf of a module; None: of a script.

        Raises:
            UsageError: The name is taken, or has letters that a path or a list would take for its own.
        """
        if not re.fullmatch(r"\w[\w.+-]*", name):
            raise UsageError(f"{self.kind} '{name}': choose a name of letters, digits and the marks _ . + -")
        module = module or "__main__"
        if not _is_ours(module):
            self._ours()
        if name in self._things:
            by = f" by {module}" if (module := self.origin(name) or "") else ""
            raise UsageError(f"{self.kind} '{name}' is registered already{by}: choose another name")
        self._things[name] = (thing, module)

    def loaded(self) -> Mapping[str, Thing]:
        """Return our own and what plugins have registered so far; no plugin is imported for that."""
        self._ours()
        return {name: thing for name, (thing, _) in self._things.items()}

    def origin(self, name: str) -> str | None:
        """Return the module of the plugin that a name came from; None for our own names and unknown ones."""
        module = self._things[name][1] if name in self._things else ""
        return None if not module or _is_ours(module) else module

    def __getitem__(self, name: str) -> Thing:
        if name not in self._things:
            self._ours()
        if name not in self._things and name in self._announced:
            self._load(name)
        return self._things[name][0]

    def __iter__(self) -> Iterator[str]:
        self._ours()
        return iter(dict.fromkeys([*self._things, *self._announced]))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @cached_property
    def _announced(self) -> dict[str, list[EntryPoint]]:
        """The entry points of installed packages, by name. None of them is imported for that."""
        found: dict[str, list[EntryPoint]] = {}
        for point in entry_points(group=f"pmal.{self.kind}s"):
            found.setdefault(point.name, []).append(point)
        return found

    def _load(self, name: str) -> None:
        point, *others = self._announced[name]
        where = f"{self.kind} '{name}' of the installed package {_package(point)}"
        if any(other.value != point.value for other in others):
            packages = " and ".join(map(_package, (point, *others)))
            raise UsageError(f"{self.kind} '{name}' is in the packages {packages}: uninstall one of them")
        try:
            point.load()
        except Exception as error:  # whatever a stranger's module does
            reason = first_line(error)
            raise UsageError(f"{where} cannot be loaded ({reason}): fix or uninstall it") from None
        if name not in self._things:
            raise UsageError(f"{where} is not registered by {point.value}: fix its entry point")


def load_plugin(module: str) -> None:
    """Import a module that the user named, so that the names that it registers are known.

    It is looked for among the installed ones, then in the current folder.

    Raises:
        UsageError: There is no such module, or it cannot be imported.
    """
    try:
        if find_spec(module.partition(".")[0]) is None:
            sys.path.append(os.getcwd())
        import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise UsageError(f"plugin {module} needs the module {error.name}: install it") from None
        fix = "install its package, or run the command in the folder that it lies in"
        raise UsageError(f"plugin {module}: no such module: {fix}") from None
    except Exception as error:  # whatever a stranger's module does
        raise UsageError(f"plugin {module} cannot be imported ({first_line(error)})") from None
    if module not in _named:
        _named.append(module)


def named_plugins() -> tuple[str, ...]:
    """Return the modules that `load_plugin` has imported, for other processes to import them, too."""
    return tuple(_named)


def check_known(used: Sequence[tuple[Registry[Any], str, str]]) -> None:
    """Refuse names that came from plugins, as a file says, if no plugin that is here has them.

    Args:
        used: Registry, name, and the module that the file names. It is named in the message, never imported.

    Raises:
        DataError: A name is unknown. The message says which plugins are missing.
    """
    missing = [(registry.kind, name, module) for registry, name, module in used if name not in registry]
    if missing:
        names = " and ".join(f"{kind} '{name}' of the plugin {module}" for kind, name, module in missing)
        options = " ".join(dict.fromkeys(f"--plugin {module}" for _, _, module in missing))
        raise DataError(f"needs {names}: install it, or pass {options} (in Python: import it first)")


def _is_ours(module: str) -> bool:
    return module == "pmal" or module.startswith("pmal.")


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist else point.value
