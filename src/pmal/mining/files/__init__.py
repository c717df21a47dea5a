"""Mining of embedding files: what `pmal mine FILE` needs."""
