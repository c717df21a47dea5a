"""The folder of a model of the hub: from its cache, or downloaded into it."""

from pathlib import Path

from pmal.encoders.pretrained.names import (
    CONFIG,
    PREPROCESSOR,
    cached_folder,
    fetch_hint,
    folder_fault,
    hub_cache,
    local_folder,
)
from pmal.errors import DataError, UsageError, first_line

WANTED = (CONFIG, PREPROCESSOR, "processor_config.json", "model*.safetensors", "model.safetensors.index.json")
"""Files that are downloaded: numbers and settings, no code and no pickle."""


def find_folder(model: str, *, with_weights: bool) -> Path:
    """Return the folder of a model; a model of the hub is downloaded if it is not in the cache.

    Raises:
        DataError: the folder lacks a file, its own weights if these are needed.
        UsageError: the model cannot be downloaded.
    """
    folder = local_folder(model)
    if folder is None:
        folder = cached_folder(model)
        if folder is None or folder_fault(folder, with_weights):
            folder = _fetch(model)
    fault = folder_fault(folder, with_weights)
    if fault:
        raise DataError(fault)
    return folder


def _fetch(model: str) -> Path:
    import huggingface_hub
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    shown = not are_progress_bars_disabled()
    disable_progress_bars()
    try:
        found = huggingface_hub.snapshot_download(model, cache_dir=hub_cache(), allow_patterns=list(WANTED))
    except Exception as error:  # of many kinds: no network, no such model, no permission, no room
        reason = first_line(error)[:120].rstrip(".: ")
        raise UsageError(f"hf/{model} cannot be had ({reason}): {fetch_hint(model)}") from None
    finally:
        if shown:
            enable_progress_bars()
    return Path(found)
