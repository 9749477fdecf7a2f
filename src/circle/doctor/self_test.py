"""Does this machine compute as CIRCLE needs it? Asked of the very code that learns, in about a second."""

from __future__ import annotations

import time

import torch

from circle.doctor.examination import Finding
from circle.extractors import ImageShape, LocalContrastConfig, build_extractor, calibration_images
from circle.statistics import SAMPLES_PER_PRODUCT, Statistics

GROUP = "self-test"


def self_test(device: str = "cpu") -> list[Finding]:
    """All checks on one device; those of exactness are essential."""
    return [gemm_rate(device), exact_products(device), same_in_any_batch(device), full_precision()]


def gemm_rate(device: str = "cpu", size: int = 768, repeats: int = 3) -> Finding:
    """float32 operations per second of a matrix product, 2 size^3 / seconds, the best of a few."""
    matrix = torch.rand(size, size, device=device)
    best = float("inf")
    for _ in range(repeats + 1):  # the first one wakes threads up
        started = time.perf_counter()
        (matrix @ matrix)[0, 0].item()  # the item waits for a GPU to end
        best = min(best, time.perf_counter() - started)
    return Finding(GROUP, f"matrix products on {device}", round(2 * size**3 / best / 1e9, 1), unit="GFLOP/s")


def exact_products(device: str = "cpu", size: int = 96) -> Finding:
    """Is M = sum_i z_i z_i^T of int8 features the same integers as in int64 arithmetic, at the ends of the range?"""
    generator = torch.Generator().manual_seed(0)
    features = torch.randint(-127, 128, (SAMPLES_PER_PRODUCT + 77, size), generator=generator, dtype=torch.int8)
    features[:SAMPLES_PER_PRODUCT, :2] = 127  # the largest sums that a tile can hold
    statistics = Statistics(size, device=device)
    statistics.update(features.to(device), [0] * len(features))
    wide = features.to(torch.int64)
    same = bool((statistics.second_moment().cpu().to(torch.int64) == wide.T @ wide).all())
    advice = "" if same else "statistics would round here: use another device, or another build of PyTorch"
    return Finding(GROUP, f"exact sums on {device}", same, "good" if same else "wrong", advice)


def same_in_any_batch(device: str = "cpu") -> Finding:
    """Are the features of an image the same, to the last bit, alone and among others?"""
    shape = ImageShape(3, 16, 16)
    extractor = build_extractor(LocalContrastConfig(), shape, 0).to(device)
    images = calibration_images(35, shape).to(device)
    together = extractor.features(images)
    alone = torch.cat([extractor.features(image[None]) for image in images[:3]])
    same = torch.equal(together[:3], alone) and torch.equal(together[30:], extractor.features(images[30:]))
    advice = "" if same else "models learned in other batches may differ in last bits here; accuracy does not suffer"
    state = "good" if same else "wrong" if device == "cpu" else "note"  # only the processor is promised to do so
    return Finding(GROUP, f"features independent of the batch on {device}", same, state, advice)


def full_precision() -> Finding:
    """Are float32 products whole, without TF32 or bfloat16 inside? Features need it; the sums see to it themselves."""
    precision = torch.get_float32_matmul_precision()
    good = precision == "highest" and not torch.backends.cuda.matmul.allow_tf32
    advice = "" if good else "torch.set_float32_matmul_precision('highest') lets features agree with other machines"
    return Finding(GROUP, "TF32", "off" if good else f"allowed ({precision})", "good" if good else "note", advice)
