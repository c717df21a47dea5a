"""The ledger as an HTML page."""
