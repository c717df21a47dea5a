"""What `pmal bench` measures: training, the PMAL step, mining and prediction, beside a plain loop."""
