"""Write the loss report as one self-contained HTML page."""
