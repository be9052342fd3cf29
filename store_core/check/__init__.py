"""Columns and derived files against each other: findings."""
