"""Environments: the table of tasks, and D4RL's own physics under today's MuJoCo.

Importing this room imports no simulator: the table of tasks is read by rooms that need none.
``pbrl.envs.registered`` tells Gymnasium of the environments.
"""
