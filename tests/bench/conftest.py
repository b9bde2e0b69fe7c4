"""Lets the tests import what lies under ``bench`` and the exported architectures."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path += [str(ROOT / "bench"), str(ROOT / "models" / "architectures")]
