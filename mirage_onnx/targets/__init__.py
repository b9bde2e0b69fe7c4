"""GPUs: limits, features and rates of each (``rows.py``), and what was measured on it (``tables``).

``tables/NAME.json``: times of ONNX Runtime's own kernels; ``tables/NAME_known.json``: up to which
sizes ours were ahead of them; ``tables/ort_fusions.json``: what ONNX Runtime fuses on any of them.
"""

from mirage_onnx.targets.measured import table_path
from mirage_onnx.targets.profile import Target
from mirage_onnx.targets.rows import H100, H200, TARGETS, get_target

__all__ = ["H100", "H200", "TARGETS", "Target", "get_target", "table_path"]
