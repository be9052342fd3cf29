"""Write an export's files and make them visible at once."""
