"""Makes what the tests of serving share importable: ``school`` here, and the programs in benchmarks/."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[2] / "benchmarks")]
