"""The model as one ONNX file: the graph, its comparison with PyTorch, the model card."""
