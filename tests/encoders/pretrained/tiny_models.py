"""A small random model of each family, saved as transformers saves it, and its image processor."""

import json

import torch

IMAGES = {
    "do_resize": True,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.4, 0.5, 0.6],
    "image_std": [0.2, 0.25, 0.3],
}
SIZES = {
    "dinov2": {"size": {"shortest_edge": 64}, "crop_size": {"height": 56, "width": 56}},
    "vit": {"size": {"height": 32, "width": 32}},
    "clip": {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}},
    "convnext": {"size": {"shortest_edge": 56}, "crop_pct": 0.875},
    "resnet": {"size": 56, "crop_pct": 0.875},
}
SIDES = {"dinov2": (64, 56), "vit": (32, 32), "clip": (32, 32), "convnext": (64, 56), "resnet": (64, 56)}
"""To which an image is decoded, and which is left of it."""
_TOKENS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
_STAGES = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]}


def make_model(family):
    """As published: with the parts that are not needed here, a classifier or the reader of text."""
    import transformers as t

    torch.manual_seed(3)
    small = {**_TOKENS, "intermediate_size": 64, "image_size": 32, "patch_size": 8}
    if family == "dinov2":
        return t.Dinov2Model(t.Dinov2Config(**_TOKENS, image_size=70, patch_size=14))
    if family == "vit":
        return t.ViTForImageClassification(t.ViTConfig(**small))
    if family == "clip":
        text = {**_TOKENS, "hidden_size": 16, "intermediate_size": 32, "vocab_size": 50}
        return t.CLIPModel(t.CLIPConfig(text_config=text, vision_config=small))
    if family == "convnext":
        # At its usual first value a layer adds nothing that could be seen.
        return t.ConvNextForImageClassification(t.ConvNextConfig(**_STAGES, layer_scale_init_value=0.5))
    return t.ResNetForImageClassification(t.ResNetConfig(**_STAGES, embedding_size=8, layer_type="basic"))


def save_tiny(family, folder):
    """Return the model after it was saved into the folder."""
    model = make_model(family).eval()
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps({**IMAGES, **SIZES[family]}))
    return model


def features_by_hand(family, model, pixels):
    """Features of uint8 images by the library itself, without any code of ours."""
    side, crop = SIDES[family]
    start = (side - crop) // 2
    mean, std = (torch.tensor(IMAGES[f"image_{n}"])[:, None, None] for n in ("mean", "std"))
    x = ((pixels / 255 - mean) / std)[:, :, start : start + crop, start : start + crop]
    with torch.no_grad():
        if family == "clip":
            return model.vision_model(x).pooler_output
        if family == "dinov2":
            return model(x).last_hidden_state[:, 0]
        if family == "vit":
            return model.vit(x).last_hidden_state[:, 0]
        return model.base_model(x).pooler_output.flatten(1)


def change_json(path, **fields):
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
