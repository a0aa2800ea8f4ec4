"""Exact values of losses and laws, and ways to compare with them."""
