import inspect
import re
import subprocess
import sys

import pytest

import pmal
from pmal import encoders
from pmal.geometry.logits import centered_logits
from pmal.geometry.robustness import topology_distance
from pmal.geometry.torch_kernel import distance_block
from pmal.mining.diversity import diversity_gaps
from pmal.mining.files.file_miner import mine_file
from pmal.mining.miner import mine
from pmal.optimization.distances import attention_weights, nearest_distance


def test_every_public_name_can_be_imported():
    for name in pmal.__all__:
        assert callable(getattr(pmal, name))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = pmal.nothing


def test_parameters_of_public_functions_are_words():
    """Shapes stand in the names inside."""
    functions = [getattr(module, name) for module in (pmal, encoders) for name in module.__all__]
    functions += [centered_logits, topology_distance, distance_block, diversity_gaps, mine, mine_file]
    functions += [attention_weights, nearest_distance]
    names = [name for f in functions if inspect.isroutine(f) for name in inspect.signature(f).parameters]
    assert not [name for name in names if re.search("_[A-Z]", name)]


def test_import_is_light():
    script = "import sys, pmal; assert not {'torch', 'numpy', 'sklearn'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_public_functions_say_what_they_take_and_return():
    """In Google style, with an example, which the tests of docstrings run."""
    elsewhere = {"check_open_set_estimator", "register_encoder", "register_method", "register_score"}
    elsewhere |= {"register_source"}  # what they register would stay: docs/how-to/plugin.md shows them
    for name in pmal.__all__:
        function = getattr(pmal, name)
        if not inspect.isfunction(function):
            continue
        signature, words = inspect.signature(function), inspect.getdoc(function)
        assert ("Args:" in words) == bool(signature.parameters), name
        assert ("Returns:" in words) == (signature.return_annotation not in (None, "None")), name
        assert (">>>" in words) == (name not in elsewhere), name
        documented = re.findall(r"^    (\w+): ", words.split("Args:")[1].split("Returns:")[0], re.M)
        assert documented[: len(signature.parameters)] == list(signature.parameters), name
