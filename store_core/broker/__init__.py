"""Predict what a release of the broker does at its start."""
