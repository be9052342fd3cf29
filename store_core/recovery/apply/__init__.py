"""Apply plans, finish interrupted ones, and undo them."""
