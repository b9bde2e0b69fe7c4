"""Whether a product runs over several axes of what a region reads: a µGraph contracts one.

The dimension is followed from the product through the moves before it, as strides of elements:
4 heads of 16 that lie 8 rows apart are ``(128, 4) (1, 16)``, one behind the other ``(1, 64)``.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import prod

from mirage_onnx.ir.program import Step
from mirage_onnx.match.partitions import matmul_depth

#: Strides with how many elements lie so far apart, slowest first.
Strides = tuple[tuple[int, int], ...]
Shapes = Callable[[str], Sequence[int]]


def contracts_apart(step: Step, makers: Mapping[str, Step], shape: Shapes) -> bool:
  """Whether ``step``, a product, runs over several axes of what moves make an operand of.

  ``makers``: the steps of the region by what they yield; ``shape``: of a tensor.
  """
  names = [str(i) for i in step.inputs]
  depths = matmul_depth(*(len(shape(x)) for x in names))
  return any(
    _is_apart(x, ((prod(shape(x)[d + 1 :]), shape(x)[d]),), makers, shape)
    for x, d in zip(names, depths, strict=True)
  )


def _is_apart(name: str, strides: Strides, makers: Mapping[str, Step], shape: Shapes) -> bool:
  step = makers.get(name)
  if step is None or step.op not in ("reshape", "transpose", "expand", "slice", "concat"):
    rows = [x for x in strides if x[1] > 1]
    return any(a != b * n for (a, _), (b, n) in pairwise(rows))
  if step.op == "reshape":  # all elements stay where they are
    return _is_apart(str(step.inputs[0]), strides, makers, shape)
  after = shape(name)
  order = step.attr if step.op == "transpose" else None
  for source in map(str, step.inputs):
    before, own = shape(source), []
    for d, inner, n in _dimensions(strides, after):
      at = int(order[d]) if isinstance(order, tuple) else d + len(before) - len(after)
      if at < 0 or inner * n > before[at]:
        return step.op != "concat"  # repeated; of parts each is contracted by itself
      own.append((prod(before[at + 1 :]) * inner, n))
    if _is_apart(source, tuple(own), makers, shape):
      return True
  return False


def _dimensions(strides: Strides, shape: Sequence[int]) -> list[tuple[int, int, int]]:
  """Strides as (dimension, stride in it, elements), cut where dimensions end."""
  found = []
  for stride, size in strides:
    for d, n in enumerate(shape):
      low = prod(shape[d + 1 :])
      first, end = max(stride, low), min(stride * size, low * n)
      if first < end:
        found.append((d, first // low, end // first))
  return found
