"""Offline reinforcement learning that knows what it does not know."""
