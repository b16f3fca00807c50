"""The networks: backbone f, projector g, predictor q, and the target with its centre."""
