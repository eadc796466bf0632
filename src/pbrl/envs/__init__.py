"""Environments: the table of tasks, and D4RL's own physics under today's MuJoCo.

Importing this room registers them, so ``gymnasium.make("pbrl.envs:pbrl/HopperD4RL-v0")`` works in a
program that has not imported pbrl.
"""

from pbrl.envs.environments import register_environments

register_environments()
