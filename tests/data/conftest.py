"""Lets the tests of this folder import what they share: ``pictures`` and ``places_of_images``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
