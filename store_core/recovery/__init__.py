"""Predict starts, plan recoveries, apply plans, and undo them."""
