"""Define in Python what the compiled kernel does; the fallback where it was not built, and the oracle of the tests."""
