"""What a request may contain: limits, uploads, rows, and how it is rejected."""
