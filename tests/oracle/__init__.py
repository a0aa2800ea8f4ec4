"""Exact tests: the network is replaced by the exact posterior of a known source."""
