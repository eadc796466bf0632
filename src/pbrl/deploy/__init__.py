"""A policy as it leaves the house: the agent in memory, its warning light, and the ONNX file.

Importing this room needs NumPy alone; ``OnnxPolicy`` runs where there is no torch.
"""

from pbrl.deploy.onnx_policy import Decision, OnnxPolicy

__all__ = ["Decision", "OnnxPolicy"]
