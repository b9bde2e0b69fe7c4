"""GPUs: limits, features and rates of each, and what was measured on it (``tables``).

``architectures.py``: what a compute capability has; ``rows.py``: the chips; ``names.py``: what a user calls
them, ``several.py``: one file for several. ``tables/NAME.json``: times of ONNX Runtime's own kernels;
``tables/NAME_known.json``: up to which sizes ours were ahead of them; ``tables/ort_fusions.json``: what ONNX
Runtime fuses on any of them; ``tables/operators.json``: what ``calibrate`` asks it about.
"""

from mirage_onnx.targets.architectures import ARCHITECTURES, TOO_OLD, Architecture, architecture_of
from mirage_onnx.targets.measured import table_path
from mirage_onnx.targets.names import get_target, of_size, suffixes_that_run, target_of_domain
from mirage_onnx.targets.profile import Rated, Target
from mirage_onnx.targets.rows import H100, H200, TARGETS
from mirage_onnx.targets.several import get_targets, joined

__all__ = [
  "ARCHITECTURES", "H100", "H200", "TARGETS", "TOO_OLD", "Architecture", "Rated", "Target", "architecture_of",
  "get_target", "get_targets", "joined", "of_size", "suffixes_that_run", "table_path", "target_of_domain",
]  # fmt: skip
