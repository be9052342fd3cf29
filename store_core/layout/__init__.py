"""Define where every byte of a broker store is: the only room with positions, widths and magic numbers."""
