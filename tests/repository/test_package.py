import inspect
import re
import subprocess
import sys

import pytest

import pmal
from pmal import encoders, geometry, mining, optimization


def test_every_public_name_can_be_imported():
    for name in pmal.__all__:
        assert callable(getattr(pmal, name))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = pmal.nothing


@pytest.mark.parametrize("module", [pmal, encoders, geometry, mining, optimization])
def test_parameters_of_public_functions_are_words(module):
    """Shapes stand in the names inside."""
    functions = [getattr(module, name) for name in module.__all__]
    names = [name for f in functions if inspect.isroutine(f) for name in inspect.signature(f).parameters]
    assert not [name for name in names if re.search("_[A-Z]", name)]


def test_import_is_light():
    script = "import sys, pmal; assert not {'torch', 'numpy', 'sklearn'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)
