"""Settings: types, names, copies."""

from __future__ import annotations

import dataclasses

import pytest

from circle import BiRC2DConfig, SLDAConfig
from circle.errors import CircleError


def test_plain_data_and_back() -> None:
    config = BiRC2DConfig(patch_sizes=(2, 8), power=0.5)
    assert BiRC2DConfig.from_dict(config.to_dict()) == config
    assert config.to_dict()["patch_sizes"] == [2, 8]
    assert config.to_dict()["name"] == "birc2d"


def test_frozen_and_hashable() -> None:
    config = SLDAConfig()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.ridge = 2.0  # pyright: ignore[reportAttributeAccessIssue]
    assert config.replace(ridge=0.5) != config
    assert len({config, SLDAConfig(), config.replace(ridge=0.5)}) == 2


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"ridge": "much"}, "slda.ridge = 'much': expected float"),
        ({"ridge": True}, "expected float"),
        ({"rigde": 1.0}, "unknown slda setting 'rigde': did you mean 'ridge'"),
        ({"colour": 1.0}, "known: calibrated, prior, ridge, ridge_rule, temperature"),
    ],
)
def test_wrong_values_are_named(values: dict, words: str) -> None:
    with pytest.raises(CircleError, match=words):
        SLDAConfig.from_dict(values)


def test_whole_numbers_are_floats_where_floats_are_meant() -> None:
    assert SLDAConfig.from_dict({"ridge": 1}).ridge == 1.0
    assert isinstance(SLDAConfig(ridge=1).ridge, float)


def test_every_field_says_what_it_is() -> None:
    for config in (BiRC2DConfig, SLDAConfig):
        for field in dataclasses.fields(config):
            assert len(field.metadata["help"]) > 10, field.name
