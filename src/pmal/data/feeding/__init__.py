"""Turning pixels into augmented batches on the device."""
