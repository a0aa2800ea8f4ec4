"""A model on disk and on the hub: its two files, where they are found, and the page beside them."""
