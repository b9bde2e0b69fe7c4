"""Masks and places that attention implies: constants that no node makes and no file holds.

A query sees the keys up to its own place, which the keys of the past precede. The name of a mask
says all that it holds; the rewritten model stores those that its kernels read.
"""

import re

import numpy as np
from onnx import TensorProto, numpy_helper

from mirage_onnx.ir import DType, Tensor
from mirage_onnx.ir.program import PLACES, is_places, places_in

#: Most elements of a mask, a byte each: no kernel is fast that reads more.
LARGEST = 1 << 20
#: Where only a run says how many places there are, those that a model holds: 4 bytes each.
MOST_PLACES = 1 << 18
#: Most new rows of a cache, a choice each.
MOST_NEW = 8
_NAME = re.compile(r"mirage\.causal\.(\d+)x(\d+)\+(\d+)")


def causal_mask(queries: int, keys: int, past: int) -> Tensor:
  """Whether query i sees key j: j <= i + past."""
  return Tensor(f"mirage.causal.{queries}x{keys}+{past}", DType.BOOL, (queries, keys))


def places(count: int) -> Tensor:
  """0, 1, 2, ...: where each of so many elements is."""
  return Tensor(f"{PLACES}{count}", DType.I32, (count,))


def places_of(name: str) -> Tensor:
  """Where each element is along a dimension of which a run says how many it has: at most ``MOST_PLACES``."""
  return Tensor(f"{PLACES}{MOST_PLACES}/{name}", DType.I32, (name,))


def implied(name: str) -> TensorProto | None:
  """What the constant of this name holds."""
  if is_places(name):
    return numpy_helper.from_array(np.arange(places_in(name), dtype=np.int32), name)
  if not (said := _NAME.fullmatch(name)):
    return None
  queries, keys, past = map(int, said.groups())
  seen = np.arange(keys) <= np.arange(past, past + queries)[:, None]
  return numpy_helper.from_array(seen, name)
