"""Carrying plans out, finishing interrupted ones, taking them back."""
