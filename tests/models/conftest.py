"""Lets the tests import what writes the exported architectures."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "models" / "architectures"))
