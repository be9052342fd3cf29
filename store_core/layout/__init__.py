"""Where every byte of a broker store is: the only home of positions, widths and magic numbers."""
