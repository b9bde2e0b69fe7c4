"""Proof that a µGraph computes what its region says, and a record of how it rounds.

This is about µGraphs. The function that compares two models, ``mirage-onnx verify`` at the command line, is
``mirage_onnx.api.verify``.
"""

import importlib

#: Public name -> the module that defines it; loaded when first used.
_PUBLIC = {"Verdict": "mirage_onnx.verify.verdict"}

__all__ = list(_PUBLIC)


def __getattr__(name: str) -> object:
  if name not in _PUBLIC:
    raise AttributeError(f"module 'mirage_onnx.verify' has no attribute {name!r}")
  value = getattr(importlib.import_module(_PUBLIC[name]), name)
  globals()[name] = value
  return value
