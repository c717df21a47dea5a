"""The finished model as a folder of safetensors and JSON with checksums."""
