"""Mining of embedding files, for `pmal mine FILE`."""
