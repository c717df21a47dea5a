"""One cell of the benchmark: a method on a split, and what it costs."""
