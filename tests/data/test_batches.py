"""Images in every form that Python users have them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from circle.data.batches import ImageBatch, ImageOptions
from circle.data.decode import ImageConfig
from circle.errors import CircleError

ANY = ImageOptions(None, None, "crop", 255)
RANDOM = np.random.default_rng(0)
COLOUR = RANDOM.integers(0, 256, (5, 6, 6, 3), dtype=np.uint8)
GREY = COLOUR[..., 0]


def converted(images: object, config: object = ANY, resize: bool = False) -> torch.Tensor:
    batch = ImageBatch(images, config, resize=resize)  # pyright: ignore[reportArgumentType]
    batch.check()
    return torch.cat([batch.tile(start, start + 2) for start in range(0, len(batch), 2)])


@pytest.mark.parametrize(
    "images",
    [
        COLOUR,
        COLOUR.reshape(5, -1),
        COLOUR.astype(np.int64),
        COLOUR.astype(np.float32) / 255,
        COLOUR.astype(np.uint16) * 257,
        torch.from_numpy(COLOUR).permute(0, 3, 1, 2),
        torch.from_numpy(COLOUR).permute(0, 3, 1, 2).float() / 255,
        list(COLOUR),
        list(torch.from_numpy(COLOUR).permute(0, 3, 1, 2)),
        COLOUR[:, ::-1][:, ::-1],
    ],
    ids=["uint8", "flat", "int64", "float", "uint16", "tensor", "float tensor", "list", "tensor list", "strided"],
)
def test_forms_of_the_same_images(images: object) -> None:
    expected = torch.from_numpy(COLOUR).permute(0, 3, 1, 2)
    found = converted(images)
    assert found.dtype == torch.uint8
    assert torch.equal(found, expected)


def test_grey_forms() -> None:
    expected = torch.from_numpy(GREY)[:, None]
    for images in (GREY, GREY[..., None], GREY.reshape(5, -1), torch.from_numpy(GREY)):
        assert torch.equal(converted(images), expected)
    assert torch.equal(converted(GREY > 99), (expected > 99).to(torch.uint8) * 255)


def test_pictures() -> None:
    pictures = [Image.fromarray(image) for image in COLOUR]
    expected = torch.from_numpy(COLOUR).permute(0, 3, 1, 2)
    options = ImageOptions((6, 6), None, "crop", 255)
    assert torch.equal(converted(pictures, options), expected)
    assert converted(pictures).shape == (5, 3, 32, 32)
    assert converted(pictures[0]).shape == (1, 3, 32, 32)
    mixed = [Image.new("L", (9, 4)), np.zeros((50, 20, 3), np.uint8)]
    assert converted(mixed, ImageOptions((8, 8), 1, "pad", 0)).shape == (2, 1, 8, 8)


def test_arrays_are_resized_only_on_request() -> None:
    config = ImageConfig(height=8, width=4, channels=3)
    assert converted(COLOUR, config, resize=True).shape == (5, 3, 8, 4)
    assert converted(COLOUR / 255.0, config, resize=True).shape == (5, 3, 8, 4)
    with pytest.raises(CircleError, match=r"6 x 6 pixels .*the model takes 8 x 4"):
        converted(COLOUR, config)


@pytest.mark.parametrize(
    ("images", "words"),
    [
        (np.full((2, 4, 4), np.nan), "NaN"),
        (np.full((2, 4, 4), np.inf), "infinity"),
        (np.full((2, 4, 4), 2.0), "from 2 to 2: expected 0 to 1"),
        (np.full((2, 4, 4), -0.1), "expected 0 to 1"),
        (np.full((2, 4, 4), 300), "expected 0 to 255"),
        (np.zeros((2, 3, 32, 32)), "at most 16 channels"),
        (np.zeros((2, 7)), "not a square image"),
        (np.zeros((0, 4, 4)), "0 sample"),
        (np.zeros((2, 4, 4), complex), "Complex"),
        (np.array([["a", "b"]]), "expected numbers"),
        (np.zeros(9), "Reshape your data"),
        (np.zeros((1, 2, 3, 4, 5)), "expected"),
        (["a.jpg"], "a.jpg: No such file or directory; expected an image file"),
        ([b"a.jpg"], "array of numbers"),
        (7, "expected an array"),
        ([Image.new("L", (4, 4)), 7], "image 1 is a int: expected a PIL image, an array or the path of a file"),
    ],
)
def test_bad_images(images: object, words: str) -> None:
    with pytest.raises(CircleError, match=words):
        converted(images)


def test_paths(tmp_path: Path) -> None:
    paths = [tmp_path / f"{index}.png" for index in range(5)]
    for path, image in zip(paths, COLOUR, strict=True):
        Image.fromarray(image).save(path)
    options = ImageOptions((6, 6), None, "crop", 255)
    expected = converted(COLOUR)
    words = [str(path) for path in paths]
    for form in (paths, words, tuple(words), np.array(words), [words[0], *paths[1:]]):
        assert torch.equal(converted(form, options), expected)
    for form in (words[0], paths[0]):
        assert torch.equal(converted(form, options), expected[:1])
    mixed = [paths[0], Image.fromarray(COLOUR[1]), COLOUR[2]]
    assert torch.equal(converted(mixed, options), expected[:3])
    with pytest.raises(CircleError, match="not a regular file"):
        converted(tmp_path)


def test_one_image_without_an_axis_for_the_batch() -> None:
    colour, grey = ImageConfig(height=6, width=6, channels=3), ImageConfig(height=6, width=6, channels=1)
    expected = torch.from_numpy(COLOUR[:1]).permute(0, 3, 1, 2)
    for image in (COLOUR[0], torch.from_numpy(COLOUR[0]).permute(2, 0, 1), Image.fromarray(COLOUR[0])):
        assert torch.equal(converted(image, colour), expected)
    assert converted(COLOUR[0, :4], colour, resize=True).shape == (1, 3, 6, 6)
    for image in (GREY[0], GREY[0][..., None], torch.from_numpy(GREY[0])):
        assert torch.equal(converted(image, grey), torch.from_numpy(GREY[:1])[:, None])


def test_one_image_that_might_be_several() -> None:
    colour, grey = ImageConfig(height=6, width=6, channels=3), ImageConfig(height=6, width=6, channels=1)
    for image in (GREY[0], np.moveaxis(COLOUR[0], 2, 0), torch.from_numpy(COLOUR[0])):
        with pytest.raises(CircleError, match=r"a single image is written image\[None\]|not a square image"):
            converted(image, colour)
    with pytest.raises(CircleError, match="6 values are not a square image"):
        converted(GREY[0], grey, resize=True)
    assert len(ImageBatch(GREY, grey, resize=False)) == 5, "images of one channel are no single image"
    assert len(ImageBatch(np.zeros((4, 4)), ANY, resize=False)) == 4, "the first batch decides: four of 2 x 2"


def test_wrong_channels() -> None:
    with pytest.raises(CircleError, match=r"1 channels .*the model takes 3; a single image is written image\[None\]"):
        converted(GREY, ImageConfig(height=6, width=6, channels=3))


def test_the_last_bad_value_of_many_is_found() -> None:
    images = np.zeros((3000, 2, 2), np.float32)
    images[-1, 1, 1] = np.nan
    with pytest.raises(CircleError, match="NaN"):
        ImageBatch(images, ANY, resize=False).check()
