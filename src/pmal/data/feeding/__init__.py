"""From pixels to augmented batches on the device."""
