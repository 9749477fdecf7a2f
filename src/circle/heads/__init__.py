"""Heads: pure functions from statistics to scores."""

from circle.heads.base import Head, HeadConfig, build_head
from circle.heads.diagonal_lda import DiagonalLDA, DiagonalLDAConfig
from circle.heads.mahalanobis import Mahalanobis, MahalanobisConfig
from circle.heads.ncm import NCM, CosineNCM, CosineNCMConfig, NCMConfig
from circle.heads.priors import PriorConfig
from circle.heads.qda import QDA, QDAConfig
from circle.heads.ridge import RecursiveRidge, Ridge, RidgeHeadConfig
from circle.heads.scores import (
    LinearScores,
    LowRankScores,
    PackedMatrix,
    PackedScores,
    PackedSubspaceScores,
    Scores,
    SubspaceScores,
)
from circle.heads.slda import SLDA, SLDAConfig
from circle.heads.subspace_qda import SubspaceQDA, SubspaceQDAConfig

__all__ = [
    "NCM",
    "QDA",
    "SLDA",
    "CosineNCM",
    "CosineNCMConfig",
    "DiagonalLDA",
    "DiagonalLDAConfig",
    "Head",
    "HeadConfig",
    "LinearScores",
    "LowRankScores",
    "Mahalanobis",
    "MahalanobisConfig",
    "NCMConfig",
    "PackedMatrix",
    "PackedScores",
    "PackedSubspaceScores",
    "PriorConfig",
    "QDAConfig",
    "RecursiveRidge",
    "Ridge",
    "RidgeHeadConfig",
    "SLDAConfig",
    "Scores",
    "SubspaceQDA",
    "SubspaceQDAConfig",
    "SubspaceScores",
    "build_head",
]
