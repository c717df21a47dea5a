"""From the options of a user to the list of cells. Everything is checked here, before anything runs."""

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pmal.benchmark.ablations import find_grid, measure_of
from pmal.benchmark.cells.asked_methods import EQUAL_COST, TOGETHER, method_names
from pmal.benchmark.cells.cell import Cell, make_cell, plain_settings
from pmal.benchmark.cells.equal_cost import count_known_classes, equal_cost_cell
from pmal.config import OWN, DataConfig, RunConfig, build, merge, own_recipe, parse_assignment, read_recipe
from pmal.data.rows.table import holds_embeddings
from pmal.data.sources.readers import is_named, open_source
from pmal.data.splits.protocols import get_split, list_families, list_sets, splits
from pmal.data.splits.task import OWN_FAMILIES, customary_family
from pmal.errors import UsageError, unknown_name
from pmal.methods import METHODS


@dataclass(frozen=True)
class Request:
    """The axes of a grid, as the user gives them."""

    methods: str | None = None
    data: str = "sample"
    family: str = "auto"
    splits: str = "0"
    seeds: str = "0"
    encoder: str | None = None
    recipe: str | None = None
    epochs: int | None = None
    settings: Sequence[str] = ()
    grid: str | None = None


@dataclass(frozen=True)
class Planned:
    """A cell that was requested."""

    cell: Cell
    grid: str | None = None
    """The ablation that it belongs to."""
    base: tuple[str, ...] | None = None
    """The settings that it varies."""
    costs_as: Cell | None = None
    """The cell of PMAL that an ensemble costs as much as."""

    @property
    def command(self) -> str:
        """Command that computes this cell again."""
        if self.costs_as:
            return self.costs_as.command(method=TOGETHER)
        return self.cell.command(self.grid, self.base)


def plan(request: Request, data_root: str | None = None) -> list[Planned]:
    """Return every requested cell once, data set by data set. Cells that share a training follow each other.

    Args:
        request: the axes of the grid.
        data_root: folder of the data. It is read if no published split gives the number of known classes.

    Raises:
        UsageError: an option names something that does not exist.
    """
    from pmal.encoders import list_encoders

    methods, variants, seeds = _methods(request), _variants(request), whole_numbers(request.seeds, "--seeds")
    if request.encoder and "/" not in request.encoder and request.encoder not in list_encoders():
        raise unknown_name("encoder", request.encoder, list_encoders())
    count = functools.cache(lambda data: count_known_classes(data, data_root))
    found: dict[Cell, Planned] = {}
    for source, family, split in _problems(request):
        usual = plain_settings(_recipe(request, source), request.settings)
        for seed, (grid, settings), method in itertools.product(seeds, variants, methods):
            base = "pmal" if method in EQUAL_COST else method
            cell = make_cell(
                *(base, source, family, split, seed),
                recipe=_recipe(request, source, base),
                encoder=request.encoder,
                epochs=request.epochs,
                settings=settings,
                measure=measure_of(grid),
            )
            _check(cell)
            if method in EQUAL_COST:
                one = _planned_at_cost(method, cell, count)
            else:
                varied = grid is not None and cell.settings != usual
                one = Planned(cell, grid, usual) if varied else Planned(cell)
            found.setdefault(one.cell, one)
    return list(found.values())


def _planned_at_cost(method: str, pmal: Cell, count: Callable[[DataConfig], int]) -> Planned:
    """Return the plan of a softmax that costs as much as a cell of PMAL."""
    cell = equal_cost_cell(method, pmal, count(pmal.config().data))
    _check(cell)
    return Planned(cell, costs_as=pmal if method == TOGETHER else None)


def _check(cell: Cell) -> None:
    from pmal.pipeline import check_config

    check_config(cell.config())


def usual_recipe(source: str) -> str:
    """Return the recipe for comparisons on a source, if the user names none."""
    if not is_named(source) and holds_embeddings(Path(source).expanduser()):
        return "precomputed"
    return "sample" if source == "sample" else "strong"


def _recipe(request: Request, source: str, method: str = "pmal") -> str:
    """Return the recipe of a method on a source: the one asked for, or the usual one for comparisons."""
    if request.recipe == OWN:
        return own_recipe(method, source)
    return request.recipe or usual_recipe(source)


def _methods(request: Request) -> list[str]:
    usual = "softmax,pmal" if request.grid is None else "pmal"
    given = _names(usual if request.methods is None else request.methods, "--methods")
    if request.grid is not None and given != ["pmal"]:
        raise UsageError(f"--grid {request.grid} varies settings of pmal: leave --methods out")
    names = list(METHODS) if given == ["all"] else given
    for name in names:
        if name not in method_names():
            raise unknown_name("method", name, method_names())
    return names


def _variants(request: Request) -> list[tuple[str | None, tuple[str, ...]]]:
    """Return the settings of each variant with the name of its grid; without a grid, the request's own."""
    base = tuple(request.settings)
    if request.grid is None:
        return [(None, base)]
    sweeps = [(grid, sweep) for grid in _names(request.grid, "--grid") for sweep in find_grid(grid)]
    return [(grid, base + variant.settings) for grid, sweep in sweeps for variant in sweep.variants]


def _problems(request: Request) -> Iterator[tuple[str, str, int]]:
    """Yield data set, family and split of each requested problem."""
    for source in _names(request.data, "--data"):
        if not is_named(source) and not Path(source).expanduser().exists():
            open_source(source, None)  # raises the error that explains the name
        family = resolve_family(source, request)
        for split in _splits(source, family, request.splits):
            yield source, family, split


def resolve_family(source: str, request: Request) -> str:
    """Return the name of the requested split family; "auto" is resolved.

    Raises:
        UsageError: the source has no such family.
    """
    published = list_families(source) if source in list_sets() else ()
    recipe = read_recipe(_recipe(request, source))
    data = build(RunConfig, merge(recipe, *map(parse_assignment, request.settings))).data
    family = customary_family(published, data) if request.family == "auto" else request.family
    if family not in (*published, *OWN_FAMILIES):
        raise unknown_name(f"split family of {source}", family, [*published, *OWN_FAMILIES])
    return family


def _splits(source: str, family: str, text: str) -> list[int]:
    published = source in list_sets() and family in list_families(source)
    if text == "all":
        return list(range(len(splits(source, family)))) if published else [0]
    wanted = whole_numbers(text, "--splits")
    for index in wanted:
        if published:
            get_split(source, family, index)
        elif index and family in ("named", "all"):
            raise UsageError(f"--splits {text}: family '{family}' has split 0 only")
    return wanted


def words(text: str) -> list[str]:
    """Return the items of a list in one option, separated by commas.

    >>> words("softmax, pmal")
    ['softmax', 'pmal']
    """
    return [word.strip() for word in text.split(",") if word.strip()]


def _names(text: str, option: str) -> list[str]:
    """Return the items of a list that must not be empty."""
    if not (found := words(text)):
        raise UsageError(f"{option} '{text}' names nothing: write names separated by commas, or leave it out")
    return found


def whole_numbers(text: str, option: str) -> list[int]:
    """Return the numbers of an option that lists numbers and ranges.

    Raises:
        UsageError: the text has another form, or lists nothing.

    >>> whole_numbers("0,2-4", "--splits")
    [0, 2, 3, 4]
    """
    found: list[int] = []
    for word in words(text):
        first, dash, last = word.partition("-")
        if not (first.isdecimal() and (last.isdecimal() if dash else True)):
            raise UsageError(f"{option} {text}: write whole numbers such as 0,2,4 or 0-4")
        found += range(int(first), int(last if dash else first) + 1)
    if not found:
        raise UsageError(f"{option} {text}: names nothing: write whole numbers such as 0,2,4 or 0-4")
    return list(dict.fromkeys(found))
