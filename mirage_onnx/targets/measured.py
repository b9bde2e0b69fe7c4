"""Where the tables of ``targets/tables`` are."""

from importlib import resources
from importlib.resources.abc import Traversable


def table_path(name: str) -> Traversable:
  """The table of this name, which need not exist: a target, ``<target>_known``, ``ort_fusions``, ``operators``."""
  return resources.files("mirage_onnx.targets").joinpath("tables", f"{name}.json")
