"""Run SQL over the tables of stores without a copy of them."""
