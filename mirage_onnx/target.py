"""The device profiles (``targets``), under the name by which every stage asks for them."""

from mirage_onnx.targets import (
  H100,
  H200,
  TARGETS,
  Rated,
  Target,
  get_target,
  get_targets,
  joined,
  suffixes_that_run,
  target_of_domain,
)

__all__ = [
  "H100", "H200", "TARGETS", "Rated", "Target", "get_target", "get_targets", "joined",
  "suffixes_that_run", "target_of_domain",
]  # fmt: skip
