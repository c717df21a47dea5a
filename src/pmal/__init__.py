"""Open-set recognition by prototype mining and learning (PMAL)."""

__version__ = "0.1.0"
