"""The paper beside us: its studies, its advice on ensembles, its published values.

>>> from circle.paper import main_result
>>> main_result("cifar100", 20, "circle", "final").mean
45.34
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from circle.registry import public_names

if TYPE_CHECKING:
    from circle.paper.ablations import StudyRequest, make_study, run_study
    from circle.paper.advise import Advice, AdviceRequest, recommend_allocation
    from circle.paper.published_results import PublishedValue, main_result

__all__ = [
    "Advice",
    "AdviceRequest",
    "PublishedValue",
    "StudyRequest",
    "main_result",
    "make_study",
    "recommend_allocation",
    "run_study",
]

__getattr__, __dir__ = public_names(
    __name__,
    {
        "circle.paper.ablations": "StudyRequest make_study run_study",
        "circle.paper.advise": "Advice AdviceRequest recommend_allocation",
        "circle.paper.published_results": "PublishedValue main_result",
    },
)
