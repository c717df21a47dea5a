"""Models of the hub: from the cache, else fetched, without code and pickles."""

import huggingface_hub
import pytest

from pmal.encoders.pretrained.hub import find_folder
from pmal.errors import UsageError


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    return tmp_path


def test_what_is_not_in_the_cache_is_fetched_into_it(cache, monkeypatch):
    asked = []

    def fetch(model, cache_dir, allow_patterns):
        folder = cache_dir / f"models--{model.replace('/', '--')}" / "snapshots" / "1"
        folder.mkdir(parents=True)
        for name in ("config.json", "model.safetensors"):
            (folder / name).write_text("{}")
        asked.append((cache_dir, allow_patterns))
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    first = find_folder("a/b", with_weights=True)
    assert find_folder("a/b", with_weights=True) == first
    [(place, patterns)] = asked
    assert place == cache
    assert not any(pattern.endswith((".bin", ".py", "*")) for pattern in patterns)


def test_why_it_cannot_be_had_is_one_line_with_the_way_around(cache, monkeypatch):
    def fetch(*_, **__):
        raise ConnectionError("no network\nTraceback")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    with pytest.raises(
        UsageError, match=r"^hf/a/b cannot be had \(no network\): fetch it .*pass hf/\./FOLDER$"
    ):
        find_folder("a/b", with_weights=True)
