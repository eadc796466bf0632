"""What a training process does to its machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from pbrl.training import machine

MATMUL = getattr(torch.backends.mkldnn, "matmul", None)
pytestmark = pytest.mark.skipif(MATMUL is None, reason="torch 2.8 and older have no such switch")


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    assert MATMUL is not None
    before = MATMUL.fp32_precision
    MATMUL.fp32_precision = "ieee"
    yield
    MATMUL.fp32_precision = before


def error() -> float:
    left, right = torch.randn(2, 64, 512, generator=torch.Generator().manual_seed(1))
    return float(((left @ right.T) - left.double() @ right.double().T).abs().max())


def test_products_keep_full_precision_whoever_makes_them() -> None:
    machine.use_wide_products()
    assert error() < 1e-3


def test_nothing_changes_where_it_is_forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PBRL_ONEDNN", "0")
    assert not machine.use_wide_products()
    assert MATMUL is not None
    assert MATMUL.fp32_precision == "ieee"


def test_a_processor_that_would_round_keeps_its_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PBRL_ONEDNN", raising=False)
    monkeypatch.setattr(machine, "_amd_with_avx512", lambda: True)
    multiply = torch.Tensor.__matmul__

    def rounded(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        if left.dtype == torch.float32:
            left, right = left.bfloat16().float(), right.bfloat16().float()
        return multiply(left, right)

    monkeypatch.setattr(torch.Tensor, "__matmul__", rounded)
    assert not machine.use_wide_products()
    assert MATMUL is not None
    assert MATMUL.fp32_precision == "ieee"
