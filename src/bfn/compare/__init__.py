"""New rows of a table beside real ones: how alike they are, and whether they are copies."""
