"""How results leave: formats, cells, layout on a terminal, progress."""
