"""Method x data set x split x seed: the grid that runs them, the ledger of results, and its tables."""
