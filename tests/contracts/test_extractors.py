"""What every registered extractor promises; a new one is tested by being registered."""

from __future__ import annotations

import pytest
import torch

from circle.config import Config
from circle.errors import CircleError
from circle.extractors import Extractor, ImageShape, build_extractor, calibrate, calibration_images
from circle.registry import entry, list_extractors

# At full width some would take minutes here. Fewer channels show the same; the tests of each extractor add what a
# convolution or product of full width might do otherwise.
NARROW = {
    "conv_patch_rnn": {"width": 64},
    "patch_rnn": {"width": 64},
    "resnet18_bn": {"base_channels": 8},
    "resnet18_ln": {"base_channels": 8},
    "vgg13": {"base_channels": 8},
}
PORTABLE = {"birc2d", "local_contrast"}
SHAPES = [ImageShape(3, 32, 32), ImageShape(1, 17, 23), ImageShape(3, 64, 64)]


def all_configs() -> list[Config]:
    return [entry("extractor", name).config(**NARROW.get(name, {})) for name in list_extractors()]


@pytest.fixture(
    scope="module",
    params=[(c, s) for c in all_configs() for s in SHAPES],
    ids=lambda p: f"{p[0].name}-{p[1].height}",
)
def extractor(request: pytest.FixtureRequest) -> Extractor:
    config, shape = request.param
    return build_extractor(config, shape, seed=3)


def test_shape_and_finite(extractor: Extractor) -> None:
    features = extractor.features(calibration_images(3, extractor.shape))
    assert features.shape == (3, extractor.size)
    assert features.dtype == torch.float32
    assert bool(torch.isfinite(features).all())
    assert float(features.std(0).max()) > 0


def test_images_are_bytes(extractor: Extractor) -> None:
    """Pixels from 0 to 1 would be taken for black ones."""
    with pytest.raises(CircleError, match="images of type torch.float32: expected torch.uint8, values from 0 to 255"):
        extractor.features(calibration_images(1, extractor.shape) / 255)


def test_portable_ones_give_integers(extractor: Extractor) -> None:
    """Which every machine must reproduce: see tests/golden, and tests/extractors/test_specification.py for how."""
    assert extractor.portable == (extractor.config.name in PORTABLE)
    features = extractor.features(calibration_images(3, extractor.shape))
    whole = bool((features == features.round()).all())
    assert whole == extractor.portable
    if extractor.portable:
        assert float(features.abs().max()) < 2**24


def test_determined_by_config_and_seed(extractor: Extractor) -> None:
    images = calibration_images(2, extractor.shape)
    torch.manual_seed(99)  # the global generator has no say
    again = build_extractor(extractor.config, extractor.shape, seed=3)
    other = build_extractor(extractor.config, extractor.shape, seed=4)
    assert torch.equal(extractor.features(images), again.features(images))
    assert torch.equal(extractor.features(images), other.features(images)) != extractor.seeded


def test_batch_and_threads_do_not_matter(extractor: Extractor) -> None:
    """Every image of a small batch was in a batch of 35 before, at another place; the last batches are not full."""
    images = calibration_images(35, extractor.shape)
    reference = extractor.features(images)
    for batch, count in ((1, 5), (2, 7), (7, 16), (33, 35)):
        for threads in (1, 2):
            torch.set_num_threads(threads)
            parts = [extractor.features(part) for part in images[:count].split(batch)]
            assert torch.equal(torch.cat(parts), reference[:count]), f"{batch} at a time on {threads} threads"


def test_nothing_is_trained(extractor: Extractor) -> None:
    assert not list(extractor.parameters())
    assert not extractor.state_dict(), "weights come from the seed and are never stored"
    count = extractor.parameter_count()
    assert count.learnable == 0
    assert count.fixed + count.generated > 0
    images = calibration_images(2, extractor.shape)
    copy = images.clone()
    first = extractor.features(images)
    assert torch.equal(extractor.features(images), first)
    assert torch.equal(images, copy), "the images belong to the caller"


def test_the_grid_holds_the_noise(extractor: Extractor) -> None:
    grid = calibrate(extractor, images=32, levels=8.0)
    positions = grid.quantise(extractor.features(calibration_images(32, extractor.shape)))
    assert positions.dtype == {8: torch.int8, 16: torch.int16}[extractor.bits]
    limit = torch.iinfo(positions.dtype).max
    assert float((positions.abs() == limit).float().mean()) < 0.01, "noise must not be clipped"
    alive = positions.float().std(0) / (1.0 if extractor.bits == 8 else 128.0)
    assert 5.0 < float(alive[alive > 0].median()) < 11.0, "about eight levels per standard deviation"
