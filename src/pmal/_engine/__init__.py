"""The training loop: steps, parallel lanes, CUDA graphs, optimizers, batch norm."""
