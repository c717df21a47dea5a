import subprocess
import sys

import pytest

import pmal


def test_every_public_name_can_be_imported():
    for name in pmal.__all__:
        assert callable(getattr(pmal, name))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = pmal.nothing


def test_import_is_light():
    script = "import sys, pmal; assert not {'torch', 'numpy', 'sklearn'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)
