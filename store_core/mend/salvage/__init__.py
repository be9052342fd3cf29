"""Keeping what can be read: survey, evidence, closed holes, derived files that follow."""
