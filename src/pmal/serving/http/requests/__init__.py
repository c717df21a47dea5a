"""What a request may hold: limits, uploads, rows, and how it is refused."""
