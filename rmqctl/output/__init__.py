"""Write results: formats, cells, layout on a terminal, progress."""
