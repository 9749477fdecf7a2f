"""Heads: pure functions from statistics to scores."""

from circle.heads.base import Head, HeadConfig, LinearScores, build_head
from circle.heads.ncm import NCM, NCMConfig
from circle.heads.slda import SLDA, SLDAConfig

__all__ = ["NCM", "SLDA", "Head", "HeadConfig", "LinearScores", "NCMConfig", "SLDAConfig", "build_head"]
