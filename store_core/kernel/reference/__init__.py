"""Define what the compiled kernel does, in Python: its fallback where it was not built, and its oracle in the tests."""
