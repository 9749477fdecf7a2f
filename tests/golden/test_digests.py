"""Every machine reproduces the committed digests."""

from __future__ import annotations

import numpy as np
import pytest
from golden.make import CASES, CHANGED, DEFAULTS, committed, digest_of
from golden.pictures import drawn_pictures, photographs

from circle.registry import entry, list_extractors
from circle.runtime.weights import FEATURE_VERSION


@pytest.mark.parametrize("name", CASES)
def test_digests(name: str) -> None:
    assert CASES[name]() == committed().get(name), CHANGED.format(names=name)


def test_the_file_is_complete() -> None:
    assert set(committed()) == {"feature_version", *CASES}
    assert committed()["feature_version"] == FEATURE_VERSION, "run `python -m tests.golden.make --write`"
    portable = {name for name in list_extractors() if entry("extractor", name).part.portable}
    assert portable == {config.name for config in DEFAULTS}


def test_a_digest_is_of_type_shape_and_every_integer() -> None:
    array = np.arange(12, dtype=np.int16).reshape(3, 4)
    changed = array.copy()
    changed[2, 3] += 1
    others = [changed, array.astype(np.int8), array.reshape(4, 3), array.T]
    assert len({digest_of(each) for each in [array, *others]}) == 5
    assert digest_of(array.astype(">i2")) == digest_of(array) == digest_of(np.asfortranarray(array))


def test_pictures_show_something() -> None:
    for images, labels in (drawn_pictures(12, 32), photographs(12, 32)):
        assert images.shape == (12, 3, 32, 32)
        assert len(set(labels)) >= 3
        assert len({image.tobytes() for image in images}) == 12
        assert images.std((1, 2, 3)).min() > 5
