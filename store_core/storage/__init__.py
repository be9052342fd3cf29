"""Open, list, lock and change the files of a store: segments, configuration, the undo journal."""
