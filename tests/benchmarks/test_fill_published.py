from benchmarks.fill import all_cells
from benchmarks.fill_published import LONG_TAIL, queue
from pmal.config import own_recipe
from pmal.methods import METHODS


def test_every_method_is_asked_for_under_the_common_recipe_and_its_own():
    requests = [request for part in ("common", "own", "neal") for request in queue()[part]]
    found = [one.cell for one in all_cells(requests, None)]
    assert len(set(found)) == len(found)
    for method in METHODS:
        for source in ("cifar10", "tinyimagenet"):
            recipes = {cell.recipe for cell in found if (cell.method, cell.source) == (method, source)}
            assert recipes == {"strong"} | ({own_recipe(method, source)} if method != "pmal" else set())
    table_1 = {"mnist", "svhn", "cifar10", "cifar+10", "cifar+50", "tinyimagenet"}
    by_set = {(cell.source, cell.method, cell.split) for cell in found if cell.recipe == "strong"}
    assert by_set == {
        (source, method, split) for source in table_1 for method in METHODS for split in (0, 1, 2)
    }
    assert all("data.long_tail=100" in request.settings for request in queue()["long-tail"])
    assert LONG_TAIL[0] == "data.num_known=80"
