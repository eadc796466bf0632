"""Importing this module registers pbrl's environments with Gymnasium, and nothing else.

``gymnasium.make("pbrl.envs.registered:pbrl/HopperD4RL-v0")`` therefore works in a program that has
not imported pbrl: Gymnasium imports what stands before the colon.
"""

from pbrl.envs.environments import register_environments

register_environments()
