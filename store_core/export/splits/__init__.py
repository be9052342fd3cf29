"""Split a log into pieces that tasks walk at the same time, and prove that the pieces join."""
