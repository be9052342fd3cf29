"""Hold plans as data: steps, their new bytes, and the bytes they expect to find."""
