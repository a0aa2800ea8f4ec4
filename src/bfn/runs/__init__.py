"""A run on disk: its folder, its status, and the lock that one training process holds."""
