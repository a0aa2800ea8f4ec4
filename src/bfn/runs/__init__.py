"""Runs on disk: the folder, and its status."""
