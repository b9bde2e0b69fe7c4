"""Proof that a µGraph computes what its region says, and a record of how it rounds.

This is about µGraphs. The function that compares two models, ``mirage-onnx verify`` at the command line, is
``mirage_onnx.api.verify``; calling this package calls that.
"""

import importlib
import sys
from types import ModuleType
from typing import Any

#: Public name -> the module that defines it; loaded when first used.
_PUBLIC = {"Verdict": "mirage_onnx.verify.verdict"}

__all__ = list(_PUBLIC)


def __getattr__(name: str) -> object:
  if name not in _PUBLIC:
    raise AttributeError(f"module 'mirage_onnx.verify' has no attribute {name!r}")
  value = getattr(importlib.import_module(_PUBLIC[name]), name)
  globals()[name] = value
  return value


class _CallablePackage(ModuleType):
  """``mirage_onnx.verify(a, b)``: the name is the package's, and what users expect is the function."""

  def __call__(self, *arguments: Any, **options: Any) -> Any:
    return importlib.import_module("mirage_onnx.api").verify(*arguments, **options)


sys.modules[__name__].__class__ = _CallablePackage
