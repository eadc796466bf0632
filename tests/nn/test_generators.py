"""Generators go on where they stood; what another device saved gives new, repeatable numbers."""

from __future__ import annotations

import pytest
import torch

from pbrl.nn.generators import restore

SAVED_BY_CUDA = torch.arange(16, dtype=torch.uint8)


def draws(state: torch.Tensor, seed: int = 3, step: int = 40) -> list[float]:
    generator = torch.Generator().manual_seed(seed)
    restore(generator, state, step)
    return torch.rand(5, generator=generator).tolist()


def test_on_the_same_device_the_numbers_go_on() -> None:
    generator = torch.Generator().manual_seed(1)
    torch.rand(7, generator=generator)
    state = generator.get_state()
    assert draws(state) == torch.rand(5, generator=generator).tolist()


def test_another_device_draws_anew_by_seed_and_step() -> None:
    here = draws(SAVED_BY_CUDA)
    assert draws(SAVED_BY_CUDA) == here
    assert draws(SAVED_BY_CUDA, step=50) != here
    assert draws(SAVED_BY_CUDA, seed=4) != here
    assert here != torch.rand(5, generator=torch.Generator().manual_seed(3)).tolist()


@pytest.mark.parametrize("state", [torch.zeros(7, dtype=torch.uint8), torch.zeros(16)])
def test_what_no_device_saved_is_refused(state: torch.Tensor) -> None:
    with pytest.raises((RuntimeError, TypeError)):
        draws(state)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_takes_what_processor_and_gpu_saved() -> None:
    gpu = torch.Generator("cuda").manual_seed(3)
    restore(gpu, torch.Generator().get_state(), 40)
    saved = gpu.get_state()
    expected = torch.rand(5, generator=gpu, device="cuda").tolist()
    restore(gpu, saved, 40)
    assert torch.rand(5, generator=gpu, device="cuda").tolist() == expected
    assert draws(saved) == draws(SAVED_BY_CUDA)
