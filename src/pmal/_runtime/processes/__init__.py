"""Several processes: ranks, torchrun, how workers start, sharing a GPU."""
