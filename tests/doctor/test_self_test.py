"""The machine's arithmetic."""

from __future__ import annotations

import pytest
import torch

from circle.doctor import self_test
from circle.statistics.second_moment import SecondMoment


def test_this_machine_is_exact() -> None:
    findings = {finding.name: finding for finding in self_test.self_test()}
    assert findings["exact sums on cpu"].value is True
    assert findings["features independent of the batch on cpu"].value is True
    assert findings["TF32"].value == "off"
    assert findings["matrix products on cpu"].value > 0.1
    assert {finding.state for finding in findings.values()} == {"good"}


def test_rounded_products_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As TF32 or bfloat16 would round them."""
    exact = SecondMoment.add_products
    monkeypatch.setattr(SecondMoment, "add_products", lambda self, features: exact(self, features * (1 + 2**-10)))
    finding = self_test.exact_products()
    assert finding.value is False and finding.state == "wrong" and "round" in finding.advice


def test_features_that_depend_on_the_batch_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(*arguments):
        class Leaky(torch.nn.Module):
            def features(self, images: torch.Tensor) -> torch.Tensor:
                return images.flatten(1) + images.float().mean()

        return Leaky()

    monkeypatch.setattr(self_test, "build_extractor", build)
    assert self_test.same_in_any_batch().state == "wrong"


def test_short_products_are_noted() -> None:
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        assert self_test.full_precision().state == "note"
        assert self_test.exact_products().state == "good", "the sums see to it themselves"
    finally:
        torch.set_float32_matmul_precision(before)
