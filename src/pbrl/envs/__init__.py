"""Environments: the table of tasks, and D4RL's own physics under today's MuJoCo."""
