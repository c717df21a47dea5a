"""Several processes: ranks, torchrun, starting workers, sharing a GPU."""
