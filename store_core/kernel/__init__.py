"""The hot pass over a window: a compiled kernel where one could be built, else its readable Python twin."""
