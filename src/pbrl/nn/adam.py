"""torch's fused Adam, with less around the kernel."""

from __future__ import annotations

from typing import Any

import torch


class Adam(torch.optim.Adam):
    """``torch.optim.Adam(fused=True)`` to the bit, for plain settings.

    What the general optimiser looks up, groups and checks before every call of its kernel takes
    longer than the kernel on a small network: a tenth of a step of TD3+BC. The state is torch's,
    so what one has written the other reads.
    """

    def __init__(self, parameters: Any, lr: float, **options: Any) -> None:
        super().__init__(parameters, lr=lr, fused=True, **options)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One step along the gradients that there are."""
        groups = [[p for p in g["params"] if p.grad is not None] for g in self.param_groups]
        if not all(p in self.state for moved in groups for p in moved):
            super().step()  # the first: makes the state
            return
        for group, moved in zip(self.param_groups, groups, strict=True):
            if not moved:
                continue
            slots = [self.state[p] for p in moved]
            counts = [slot["step"] for slot in slots]
            torch._foreach_add_(counts, 1)
            torch._fused_adam_(
                moved,
                [p.grad for p in moved],
                [slot["exp_avg"] for slot in slots],
                [slot["exp_avg_sq"] for slot in slots],
                [],
                counts,
                lr=group["lr"],
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                amsgrad=False,
                maximize=False,
            )

    # torch would wrap ``step`` in a profiler's record and hooks, which nobody here uses.
    step.hooked = True  # type: ignore[attr-defined]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients."""
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None
