"""Recipes: what they hold, how they are read, and what is built from them."""
