"""The live store: append, flush, allocate, dispatch, delay, transactions."""
