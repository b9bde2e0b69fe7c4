"""Where the tables of ``targets/tables`` are."""

from importlib import resources
from importlib.resources.abc import Traversable


def table_path(name: str) -> Traversable:
  """The table of this name, which need not exist: of a target, ``NAME_known``, or one for all of them."""
  return resources.files("mirage_onnx.targets").joinpath("tables", f"{name}.json")
