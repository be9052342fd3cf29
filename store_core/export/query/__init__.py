"""SQL over the tables of stores, read where they are."""
