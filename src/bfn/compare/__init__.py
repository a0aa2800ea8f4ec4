"""Compare new rows of a table with real ones: how alike they are, and whether any are copies."""
