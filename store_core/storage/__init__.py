"""Files: segment sequences and windows over them, the one writer, the lock, the broker's configuration, the undo journal."""
