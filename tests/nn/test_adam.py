"""Adam is torch's, to the bit."""

from __future__ import annotations

import copy

import torch
from torch import nn

from pbrl.nn.adam import Adam

SETTINGS = {"lr": 1e-2, "weight_decay": 0.1, "betas": (0.8, 0.99), "eps": 1e-6}


def weights() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(n, 3, generator=generator)) for n in (4, 7)]


def push(parameters: list[nn.Parameter], step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def test_steps_are_those_of_torch() -> None:
    ours, theirs = weights(), weights()
    mine, other = Adam(ours, **SETTINGS), torch.optim.Adam(theirs, fused=True, **SETTINGS)  # type: ignore[arg-type]
    for step in range(5):
        for optimizer, parameters in ((mine, ours), (other, theirs)):
            push(parameters, step)
            if step == 3:  # one without a gradient stays where it is
                parameters[1].grad = None
            optimizer.param_groups[0]["lr"] = 1e-2 / (1 + step)
            optimizer.step()
            optimizer.zero_grad()
            assert all(p.grad is None for p in parameters)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_its_state_goes_on_in_torchs() -> None:
    ours = weights()
    mine = Adam(ours, **SETTINGS)  # type: ignore[arg-type]
    for step in range(2):
        push(ours, step)
        mine.step()
    theirs = copy.deepcopy(ours)
    other = torch.optim.Adam(theirs, fused=True, **SETTINGS)  # type: ignore[arg-type]
    other.load_state_dict(copy.deepcopy(mine.state_dict()))  # torch shares tensors
    push(ours, 2)
    push(theirs, 2)
    mine.step()
    other.step()
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
