"""Settings of a run that takes a second."""

TINY = {
    "data": {"limit": 40, "held_out": 0.25, "image_size": 12, "augmentation": "none"},
    "encoder": {"name": "small"},
    "training": {"epochs": 1, "batch_size": 32},
    "mining": {"per_class": 3},
}
