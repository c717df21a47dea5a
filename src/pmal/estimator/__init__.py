"""`OpenSetClassifier`, its settings and its checks."""
