"""Compare new rows of a table with real ones: how similar they are, and whether any are copies."""
