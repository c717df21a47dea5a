"""What a run is worth, in numbers and pictures."""
