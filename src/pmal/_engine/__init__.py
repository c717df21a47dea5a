"""The training loop: steps, lanes side by side, CUDA graphs, optimizers, batch norm."""
