"""Prediction, salvage, plan, apply, undo."""
