"""How likely each class is before an image was seen: as in what was learned, alike, or as somebody says.

In a config the prior is one text, so that presets, files and flags hold it alike: ``counts``, ``uniform``, or weights
such as ``cat=2,dog=0.5``. Labels are compared as text, because flags and TOML know no other.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from circle.config import option
from circle.errors import CircleError, printable
from circle.heads.base import HeadConfig
from circle.statistics import Statistics

COUNTS, UNIFORM = "counts", "uniform"
OTHER_WEIGHT = 1.0  # of a class that no weight is given for
_SPECIAL = re.compile(r"([\\,=])")
_ITEM = re.compile(r"((?:[^\\,=]|\\.)+)=([^,=]+)(?:,|$)", re.DOTALL)


@dataclass(frozen=True)
class PriorConfig(HeadConfig):
    """Settings of heads that know how likely each class is beforehand.

    Parameters
    ----------
    prior : str or mapping
        ``"counts"``: n_c / N, as likely as among the samples learned. ``"uniform"``: all alike, for samples that are
        out of proportion. Weights, as ``{"cat": 2.0, "dog": 0.5}`` or ``"cat=2,dog=0.5"``: so likely relative to a
        class that is not named, whose weight is 1. A class that is named and not learned yet has its weight once it is.

    Examples
    --------
    >>> from circle.heads import SLDAConfig
    >>> SLDAConfig(prior={"dog": 0.5, 7: 2}).prior
    '7=2,dog=0.5'
    >>> SLDAConfig(prior="cat=-1")
    Traceback (most recent call last):
    circle.errors.CircleError: slda.prior: weight -1 of class 'cat'; expected a positive number
    """

    prior: str = option(
        COUNTS, "of classes: counts as learned, uniform, or weights such as cat=2,dog=0.5 (1 where none is given)"
    )

    def __post_init__(self) -> None:
        given = self.prior
        if isinstance(given, Mapping) or (isinstance(given, str) and given not in (COUNTS, UNIFORM)):
            weights = given if isinstance(given, Mapping) else read_weights(given, f"{self.name}.prior")
            object.__setattr__(self, "prior", weights_text(weights, f"{self.name}.prior"))
        super().__post_init__()

    def log_priors(self, statistics: Statistics) -> Tensor:
        """log of the prior of each class, float64 [C]; the priors add up to one."""
        if self.prior == COUNTS:
            weights = statistics.counts.to(statistics.device, torch.float64)
        else:
            given = {} if self.prior == UNIFORM else read_weights(self.prior, f"{self.name}.prior")
            values = [given.get(str(label), OTHER_WEIGHT) for label in statistics.classes]
            weights = torch.tensor(values, dtype=torch.float64, device=statistics.device)
        return (weights / weights.sum()).log()


def weights_text(weights: Mapping[Any, float], where: str) -> str:
    r"""Weights as one text, whatever their order; :func:`read_weights` is the inverse.

    >>> weights_text({"dog": 2, "a,b": 0.1}, "prior"), read_weights(r"a\,b=0.1,dog=2", "prior")
    ('a\\,b=0.1,dog=2', {'a,b': 0.1, 'dog': 2.0})
    """
    found: dict[str, float] = {}
    for label, weight in weights.items():
        text = str(label)
        if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 < weight < math.inf:
            shown = f"{weight:g}" if isinstance(weight, float) else repr(weight)
            raise CircleError(f"{where}: weight {shown} of class {printable(text)!r}; expected a positive number")
        if not text or text in found:
            raise CircleError(f"{where}: class {printable(text)!r} twice or without a name; expected each class once")
        found[text] = float(weight)
    if not found:
        raise CircleError(f"{where}: no weights; expected counts, uniform, or weights such as cat=2,dog=0.5")
    return ",".join(_SPECIAL.sub(r"\\\1", text) + "=" + _number(found[text]) for text in sorted(found))


def read_weights(text: str, where: str) -> dict[str, float]:
    """Weights by label; a comma, an equals sign or a backslash in a label has a backslash before it."""
    found: dict[str, float] = {}
    position = 0
    while position < len(text) or not found:
        item = _ITEM.match(text, position)
        try:
            if item is None:
                raise ValueError
            weight = float(item[2])
        except ValueError as error:
            message = f"{where} = {printable(text)!r}: expected counts, uniform, or weights such as cat=2,dog=0.5"
            raise CircleError(message) from error
        label = re.sub(r"\\(.)", r"\1", item[1], flags=re.DOTALL).strip()
        if label in found:
            raise CircleError(f"{where}: class {printable(label)!r} twice; expected each class once")
        found[label] = weight
        position = item.end()
    return found


def _number(value: float) -> str:
    """The shortest text that is this number again."""
    return str(int(value)) if value.is_integer() and value < 2**53 else repr(value)
