"""Each operation against PIL, one image at a time, and the two ways to choose among them against their definitions."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from circle.baselines import auto_augment as module
from circle.baselines.auto_augment import NAMES, OPERATIONS, TRIVIAL, auto_augment, auto_table, trivial_augment
from circle.extractors import ImageShape, calibration_images

LEVEL = 1 / 255
BLENDS = ("brightness", "colour", "contrast", "sharpness")

# The published policy, as a second hand wrote it down: operation, probability, level.
PUBLISHED = """
invert .1 -, contrast .2 6 | rotate .7 2, translate_x .3 9 | sharpness .8 1, sharpness .9 3
| shear_y .5 8, translate_y .7 9 | autocontrast .5 -, equalise .9 - | shear_y .2 7, posterise .3 7
| colour .4 3, brightness .6 7 | sharpness .3 9, brightness .7 9 | equalise .6 -, equalise .5 -
| contrast .6 7, sharpness .6 5 | colour .7 7, translate_x .5 8 | equalise .3 -, autocontrast .4 -
| translate_y .4 3, sharpness .2 6 | brightness .9 6, colour .2 8 | solarise .5 2, invert 0 -
| equalise .2 -, autocontrast .6 - | equalise .2 -, equalise .6 - | colour .9 9, equalise .6 -
| autocontrast .8 -, solarise .2 8 | brightness .1 3, colour .7 0 | solarise .4 5, autocontrast .9 -
| translate_y .9 9, translate_y .7 9 | autocontrast .9 -, solarise .8 3 | equalise .8 -, invert .1 -
| translate_y .7 9, autocontrast .9 -
"""


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pictures(count: int = 6, channels: int = 3, height: int = 22, width: int = 30) -> Tensor:
    """Smooth images on the 256 levels: [count, channels, height, width], some channels with a narrow range."""
    images = calibration_images(count, ImageShape(channels, height, width)).float().div(255.0)
    images[1::3] = 0.2 + 0.5 * images[1::3]
    return (images.clamp(0, 1) * 255).round() / 255


def to_pil(image: Tensor) -> Image.Image:
    pixels = (image * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    return Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)


def from_pil(image: Image.Image) -> Tensor:
    pixels = np.asarray(image, dtype=np.float32) / 255
    return torch.from_numpy(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1).copy())


def warp(image: Image.Image, matrix: tuple[float, ...]) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.NEAREST, fillcolor="#808080")


GEOMETRIC: dict[str, Callable[[Image.Image, float], Image.Image]] = {
    "shear_x": lambda image, m: warp(image, (1, m, 0, 0, 1, 0)),
    "shear_y": lambda image, m: warp(image, (1, 0, 0, m, 1, 0)),
    "translate_x": lambda image, m: warp(image, (1, 0, m * image.width, 0, 1, 0)),
    "translate_y": lambda image, m: warp(image, (1, 0, 0, 0, 1, m * image.height)),
    "rotate": lambda image, m: image.rotate(m, Image.Resampling.NEAREST, fillcolor="#808080"),
}


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", GEOMETRIC)
def test_geometric_operations(name: str, channels: int) -> None:
    images = pictures(channels=channels)
    magnitudes = torch.tensor([-0.43, -0.21, 0.07, 0.0, 0.26, 0.9]) * (100 if name == "rotate" else 1)
    results = OPERATIONS[name](images, magnitudes)
    for image, magnitude, result in zip(images, magnitudes, results, strict=True):
        expected = from_pil(GEOMETRIC[name](to_pil(image), magnitude.item()))
        # PIL's grey is 128 / 255, and it adds up positions in another order, so that a few pixels fall elsewhere.
        assert ((result - expected).abs() > 0.6 * LEVEL).float().mean() < 0.01
        assert set(result.unique().tolist()) <= {*image.unique().tolist(), 0.5}, "no value is changed on its way"
    assert not torch.allclose(results[0], images[0], atol=0.1)


def test_whole_turns_and_shifts_are_exact() -> None:
    images = pictures(4, height=8, width=8)
    turned = module.rotate(images, torch.tensor([90.0, 180.0, -90.0, 0.0]))
    for image, result, turns in zip(images, turned, (1, 2, -1, 0), strict=True):
        assert torch.equal(result, torch.rot90(image, turns, (1, 2)))
    shifted = module.translate_x(images, torch.full((4,), 3 / 8))
    assert torch.equal(shifted[..., :5], images[..., 3:])
    assert torch.equal(shifted[..., 5:], torch.full((4, 3, 8, 3), 0.5))
    # Half a pixel: every column moves alike, none is doubled.
    half = module.translate_y(images, torch.full((4,), 1.5 / 8))
    assert torch.equal(half[:, :, :6], images[:, :, 2:])


@pytest.mark.parametrize(
    ("name", "enhance", "tolerance"),
    [
        ("brightness", ImageEnhance.Brightness, 1.01),
        ("colour", ImageEnhance.Color, 1.6),
        ("contrast", ImageEnhance.Contrast, 1.6),
        ("sharpness", ImageEnhance.Sharpness, 1.6),
    ],
)
@pytest.mark.parametrize("channels", [1, 3])
def test_blends(
    name: str, enhance: Callable[[Image.Image], ImageEnhance._Enhance], tolerance: float, channels: int
) -> None:
    images = pictures(channels=channels)
    magnitudes = torch.tensor([-0.9, -0.5, -0.1, 0.0, 0.4, 0.9])
    results = OPERATIONS[name](images, magnitudes)
    for image, magnitude, result in zip(images, magnitudes, results, strict=True):
        expected = from_pil(enhance(to_pil(image)).enhance(1 + magnitude.item()))
        assert torch.allclose(result, expected, rtol=0, atol=tolerance * LEVEL)
    assert torch.equal(results[0], images[0]) == (name == "colour" and channels == 1)


@pytest.mark.parametrize("shape", [(2, 3, 2, 9), (2, 3, 9, 1)])
def test_images_that_are_all_border_cannot_be_sharpened(shape: tuple[int, ...]) -> None:
    images = torch.rand(shape, generator=seeded())
    assert torch.allclose(module.sharpness(images, torch.tensor([0.9, -0.9])), images)


def test_grey_level_of_other_channels_is_their_mean() -> None:
    images = torch.rand(2, 4, 5, 5, generator=seeded())
    assert torch.allclose(module.colour(images, torch.full((2,), -1.0)), images.mean(1, keepdim=True).expand_as(images))


@pytest.mark.parametrize("channels", [1, 3])
def test_posterise_solarise_invert(channels: int) -> None:
    images = torch.linspace(0, 255, 256).view(1, 1, 16, 16).expand(10, channels, -1, -1) / 255
    bits = torch.tensor([8.0, 7, 6, 5, 4, 3, 2, 1, 4, 4])
    # Thresholds 1 - level / 9 of all levels; a third of them are levels of pixels.
    posterised, solarised = module.posterise(images, bits), module.solarise(images, 1 - torch.arange(10) / 9)
    for level in range(10):
        image = to_pil(images[level])
        assert torch.allclose(posterised[level], from_pil(ImageOps.posterize(image, int(bits[level]))), atol=1e-6)
        threshold = math.ceil(255 - 255 * level / 9)
        assert torch.allclose(solarised[level], from_pil(ImageOps.solarize(image, threshold)), atol=1e-6)
    assert torch.allclose(module.invert(images, bits)[0], from_pil(ImageOps.invert(to_pil(images[0]))), atol=1e-6)


def hard_images(channels: int) -> Tensor:
    """Images that histograms stumble over: smooth, flat, of two levels, of few levels, with most pixels alike."""
    images = pictures(6, channels, 32, 32)
    images[1] = 77 * LEVEL
    images[2] = (images[2] > 0.5) * 200 * LEVEL + 20 * LEVEL
    images[3] = (images[3] * 5).round() / 5
    images[4, :, :24] = 9 * LEVEL
    images[5, 0] = 1.0
    return images


@pytest.mark.parametrize("channels", [1, 3])
def test_equalise_and_autocontrast(channels: int) -> None:
    for images in (hard_images(channels), hard_images(channels)[..., :17, :23], hard_images(channels)[..., :9, :8]):
        nothing = torch.zeros(len(images))
        equalised, stretched = module.equalise(images, nothing), module.autocontrast(images, nothing)
        for image, equal, stretch in zip(images, equalised, stretched, strict=True):
            assert torch.allclose(equal, from_pil(ImageOps.equalize(to_pil(image))), atol=1e-6)
            # PIL rounds down.
            assert torch.allclose(stretch, from_pil(ImageOps.autocontrast(to_pil(image))), atol=1.01 * LEVEL)
    assert stretched[0, 0].min() == 0
    assert stretched[0, 0].max() == 1


def test_equalised_levels_stop_at_the_brightest() -> None:
    # 300 pixels: a step of one, and more than 255 of them below the last level.
    images = torch.linspace(0, 255, 300).round().view(1, 1, 15, 20) / 255
    equalised = module.equalise(images, torch.zeros(1))
    assert torch.allclose(equalised[0], from_pil(ImageOps.equalize(to_pil(images[0]))), atol=1e-6)
    assert equalised.max() == 1


def test_noise_of_rounding_is_not_stretched() -> None:
    images = 0.7 + 1e-7 * torch.rand(1, 3, 8, 8, generator=seeded())
    assert torch.equal(module.autocontrast(images, torch.zeros(1)), images)


@pytest.mark.parametrize("name", NAMES)
def test_operations_leave_their_input_alone(name: str) -> None:
    images = pictures()
    before = images.clone()
    magnitudes = torch.full((len(images),), 5.0 if name == "posterise" else 0.0)
    result = OPERATIONS[name](images, magnitudes)
    assert torch.equal(images, before)
    result.zero_()
    assert torch.equal(images, before), "the result is a tensor of its own"


def test_the_policy_is_the_published_one() -> None:
    parsed = []
    for pair in PUBLISHED.split("|"):
        words = [operation.split() for operation in pair.split(",")]
        parsed.append(tuple((name, float(chance), 0 if level == "-" else int(level)) for name, chance, level in words))
    assert list(module.POLICY) == parsed
    assert len(parsed) == 25


def test_magnitudes() -> None:
    auto, trivial, small = auto_table(), module.trivial_table(64, 40), module.trivial_table(20, 16)
    assert auto.shape == (15, 10)
    assert trivial.shape == (15, 31)
    for name, widest, wide in (
        ("shear_x", 0.3, 0.99),
        ("shear_y", 0.3, 0.99),
        ("translate_x", 150 / 331, 32 / 40),
        ("translate_y", 150 / 331, 0.5),
        ("rotate", 30.0, 135.0),
        *((name, 0.9, 0.99) for name in BLENDS),
        *((name, 0.0, 0.0) for name in ("identity", "autocontrast", "equalise", "invert")),
    ):
        row = NAMES.index(name)
        assert torch.allclose(auto[row], torch.tensor([widest * level / 9 for level in range(10)])), name
        assert torch.allclose(trivial[row], torch.tensor([wide * level / 30 for level in range(31)])), name
    assert small[NAMES.index("translate_x"), -1] == small[NAMES.index("translate_y"), -1] == 1
    bits = NAMES.index("posterise")
    assert auto[bits].tolist() == [8, 8, 7, 7, 6, 6, 5, 5, 4, 4]
    assert trivial[bits].tolist() == [8 - round(level / 5) for level in range(31)]
    threshold = NAMES.index("solarise")
    assert torch.allclose(auto[threshold], torch.tensor([1 - level / 9 for level in range(10)]))
    assert torch.allclose(trivial[threshold], torch.tensor([1 - level / 30 for level in range(31)]))


def test_grouping_is_one_image_at_a_time() -> None:
    images = pictures(60, height=10, width=12)
    codes = torch.randint(len(NAMES), (60,), generator=seeded())
    magnitudes = torch.rand(60, generator=seeded(1))
    expected = [
        OPERATIONS[NAMES[code]](images[i : i + 1], magnitudes[i : i + 1]) for i, code in enumerate(codes.tolist())
    ]
    assert torch.allclose(module.apply(images, codes, magnitudes), torch.cat(expected), atol=1e-6)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Tensor, Tensor]]:
    """What was drawn: (codes, signed magnitudes) of each round of operations; images stay as they are."""
    calls: list[tuple[Tensor, Tensor]] = []

    def record(images: Tensor, codes: Tensor, magnitudes: Tensor) -> Tensor:
        calls.append((codes, magnitudes))
        return images

    monkeypatch.setattr(module, "apply", record)
    return calls


def near(count: int, trials: int, chance: float) -> bool:
    """Within five standard deviations of a binomial distribution."""
    return abs(count - trials * chance) <= 5 * math.sqrt(trials * chance * (1 - chance)) + 1e-9


def test_shares_of_auto_augment(drawn: list[tuple[Tensor, Tensor]]) -> None:
    count = 50_000
    auto_augment(torch.zeros(count, 1, 1, 1), seeded(3))
    assert len(drawn) == 2, "two operations, one after the other"
    table = auto_table()
    for place, (codes, magnitudes) in enumerate(drawn):
        for row, name in enumerate(NAMES[1:], 1):
            own = [pair[place] for pair in module.POLICY if pair[place][0] == name]
            assert near(int((codes == row).sum()), count, sum(chance for _, chance, _ in own) / 25), name
            seen = set(magnitudes[codes == row].abs().tolist())
            assert seen == {table[row, level].item() for _, chance, level in own if chance > 0}
    # Both operations come from the same sub-policy: rotate goes with translate_x, shear_y never follows.
    turned = drawn[0][0] == NAMES.index("rotate")
    assert set(drawn[1][0][turned].tolist()) == {NAMES.index("identity"), NAMES.index("translate_x")}
    both = turned & (drawn[1][0] == NAMES.index("translate_x"))
    assert near(int(both.sum()), count, 0.7 * 0.3 / 25), "one happens whether or not the other does"


def test_shares_of_trivial_augment(drawn: list[tuple[Tensor, Tensor]]) -> None:
    count = 40_000
    trivial_augment(torch.zeros(count, 1, 4, 40), seeded(4))
    ((codes, magnitudes),) = drawn
    assert set(TRIVIAL) == {"identity", *GEOMETRIC, *BLENDS, "posterise", "solarise", "autocontrast", "equalise"}
    for row, name in enumerate(TRIVIAL):
        assert near(int((codes == row).sum()), count, 1 / 14), name
        own, table = magnitudes[codes == row], module.trivial_table(4, 40)[row]
        assert set(own.abs().tolist()) == set(table.tolist())
        if name in ("shear_x", "translate_y", "posterise", "solarise"):
            share = (table == table[-1]).float().mean().item()
            assert near(int((own.abs() == table[-1]).sum()), len(own), share), "levels are equally likely"


@pytest.mark.parametrize("augment", [auto_augment, trivial_augment])
def test_signs(augment: Callable[[Tensor, torch.Generator], Tensor], drawn: list[tuple[Tensor, Tensor]]) -> None:
    augment(torch.zeros(40_000, 1, 8, 8), seeded(5))
    for codes, magnitudes in drawn:
        for row in codes.unique().tolist():
            own = magnitudes[(codes == row) & (magnitudes != 0)]
            both = NAMES[row] in (*GEOMETRIC, *BLENDS)
            assert near(int((own < 0).sum()), len(own), 0.5 if both else 0.0), NAMES[row]
