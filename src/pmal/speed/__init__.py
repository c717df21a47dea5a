"""What `pmal bench` measures: training, the PMAL step, mining and prediction, next to a plain loop."""
