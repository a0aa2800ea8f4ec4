"""Sampling: from the prior to data, step by step."""
