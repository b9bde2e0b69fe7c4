"""Shapes of results where operands are sizes: a row for every operator of which inference loses them.

A rule says what the result has in every run that ends well. A dimension of which nothing is known is None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from onnx import NodeProto

from mirage_onnx.importer.sizes import (
  Capped,
  SizeSum,
  UnsettledError,
  at_most,
  divided,
  is_count,
  product,
  same,
)

Dim = SizeSum | Capped | int | None
Dims = tuple[Dim, ...]
#: From here on an end of a slice is that of what is sliced.
_TO_THE_END = (1 << 31) - 1


class KnownSizes(Protocol):
  """What is known so far."""

  def value(self, name: str) -> list[Any]: ...
  def shape(self, name: str) -> Dims | None: ...


def broadcast(*shapes: Dims) -> Dims:
  """numpy's rule, of sizes."""
  rank = max(map(len, shapes))
  aligned = [(1,) * (rank - len(s)) + tuple(s) for s in shapes]
  return tuple(_one(dims) for dims in zip(*aligned, strict=True))


def _one(dims: tuple[Dim, ...]) -> Dim:
  """The dimension of a result: sizes that meet are equal, or 1."""
  found: Dim = 1
  for d in dims:
    found = _both(found, d)
  return found


def _both(a: Dim, b: Dim) -> Dim:
  for one, other in ((a, b), (b, a)):
    if isinstance(one, int) and one == 1:
      return other
    # Equal, or the number is 1, or the run fails.
    if isinstance(one, Capped) and isinstance(other, SizeSum) and same(one.size, other):
      return other
  if isinstance(a, Capped) or isinstance(b, Capped) or a is None or b is None:
    # What is no 1 is the size of the result, whatever it meets.
    return next((n for n in (a, b) if isinstance(n, int) and n > 1), None)
  if same(a, b):
    return a
  for one, other in ((a, b), (b, a)):
    if isinstance(one, int) and one > 1:
      return one
    # Never 0 and never the more of the two: equal, or 1.
    if at_most(1, one) and at_most(one, other):
      return other
  return None


def _shape(known: KnownSizes, name: str) -> Dims:
  shape = known.shape(name)
  if shape is None:
    raise UnsettledError("an unknown rank")
  return shape


def _elementwise(known: KnownSizes, node: NodeProto, _: Mapping[str, Any]) -> Dims:
  return broadcast(*(_shape(known, i) for i in node.input))


def _like_first(known: KnownSizes, node: NodeProto, _: Mapping[str, Any]) -> Dims:
  return _shape(known, node.input[0])


def _counted(values: list[Any]) -> Dims:
  if not all(is_count(v) for v in values):
    raise UnsettledError("a negative size")
  return tuple(values)


def _expand(known: KnownSizes, node: NodeProto, _: Mapping[str, Any]) -> Dims:
  return broadcast(_shape(known, node.input[0]), _counted(known.value(node.input[1])))


def _filled(known: KnownSizes, node: NodeProto, _: Mapping[str, Any]) -> Dims:
  return _counted(known.value(node.input[0]))


def _range(known: KnownSizes, node: NodeProto, _: Mapping[str, Any]) -> Dims:
  (start,), (limit,), (step,) = map(known.value, node.input)
  if not (isinstance(step, int) and step == 1):
    raise UnsettledError("a step")
  return _counted([limit - start])


def _reshape(known: KnownSizes, node: NodeProto, attributes: Mapping[str, Any]) -> Dims:
  have = known.shape(node.input[0])
  dims: list[Dim] = []
  rest: int | None = None
  for axis, d in enumerate(known.value(node.input[1])):
    if isinstance(d, int) and d == 0 and not attributes.get("allowzero"):
      dims.append(have[axis] if have is not None else None)
    elif isinstance(d, int) and d == -1:
      rest = axis
      dims.append(None)
    else:
      dims += _counted([d])
  if rest is not None and have is not None:
    others = [d for axis, d in enumerate(dims) if axis != rest]
    sizes = [d for d in (*have, *others) if isinstance(d, (int, SizeSum))]
    if len(sizes) == len(have) + len(others):
      dims[rest] = divided(product(sizes[: len(have)]), product(sizes[len(have) :]))
  return tuple(dims)


def _slice(known: KnownSizes, node: NodeProto, _: Mapping[str, Any]) -> Dims:
  dims = list(_shape(known, node.input[0]))
  starts, ends = known.value(node.input[1]), known.value(node.input[2])
  given = [*node.input, "", ""]
  axes = known.value(given[3]) if given[3] else list(range(len(starts)))
  steps = known.value(given[4]) if given[4] else [1] * len(starts)
  for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
    dims[axis] = _part(dims[axis], start, end) if isinstance(step, int) and step == 1 else None
  return tuple(dims)


def _part(size: Dim, start: object, end: object) -> Dim:
  if size is None or isinstance(size, Capped) or not (isinstance(start, int) and start >= 0):
    return None
  if isinstance(end, int) and end >= _TO_THE_END:
    end = size
  elif isinstance(end, int) and end < 0:
    end = size + end
  if not (isinstance(end, (int, SizeSum)) and is_count(end) and at_most(start, end)):
    return None
  if isinstance(size, int) and size > 0 and isinstance(end, SizeSum) and start == 0:
    return Capped(size, end)
  left = end if at_most(end, size) else size if at_most(size, end) else None
  return None if left is None or not at_most(start, left) else left - start


def _transpose(known: KnownSizes, node: NodeProto, attributes: Mapping[str, Any]) -> Dims:
  have = _shape(known, node.input[0])
  order = attributes.get("perm") or range(len(have))[::-1]
  return tuple(have[i] for i in order)


def _matmul(known: KnownSizes, node: NodeProto, _: Mapping[str, Any]) -> Dims:
  a, b = (_shape(known, i) for i in node.input)
  if len(a) < 2 or len(b) < 2:
    raise UnsettledError("a vector")
  return (*broadcast(a[:-2], b[:-2]), a[-2], b[-1])


def _concat(known: KnownSizes, node: NodeProto, attributes: Mapping[str, Any]) -> Dims:
  shapes = [_shape(known, i) for i in node.input]
  axis = range(len(shapes[0]))[attributes["axis"]]
  # ONNX Runtime leaves out a part of no elements, whatever its other dimensions are.
  empty = any(isinstance(d, int) and d == 0 for s in shapes for d in s)
  dims: list[Dim] = []
  for k, along in enumerate(zip(*shapes, strict=True)):
    sizes = [d for d in along if d is not None]
    if k == axis:
      total: Dim = 0
      for d in sizes:
        total = total + d
      dims.append(total if len(sizes) == len(along) else None)
    elif empty and not (len(sizes) == len(along) and all(same(sizes[0], d) for d in sizes)):
      dims.append(None)
    else:  # all are equal
      dims.append(min(sizes, key=lambda d: not isinstance(d, int)) if sizes else None)
  return tuple(dims)


def _gather(known: KnownSizes, node: NodeProto, attributes: Mapping[str, Any]) -> Dims:
  have, by = (_shape(known, i) for i in node.input)
  axis = range(len(have))[attributes.get("axis", 0)]
  return (*have[:axis], *by, *have[axis + 1 :])


def _unsqueeze(known: KnownSizes, node: NodeProto, attributes: Mapping[str, Any]) -> Dims:
  have = list(_shape(known, node.input[0]))
  axes = attributes["axes"] if "axes" in attributes else known.value(node.input[1])
  rank = len(have) + len(axes)
  for axis in sorted(range(rank)[a] for a in axes):
    have.insert(axis, 1)
  return tuple(have)


def _like_indices(known: KnownSizes, node: NodeProto, _: Mapping[str, Any]) -> Dims:
  return _shape(known, node.input[1])


#: Of operators whose results have no rule of their own, onnx's inference is taken (``KnownSizes.shape``).
SHAPES: Mapping[str, Callable[[KnownSizes, NodeProto, Mapping[str, Any]], Dims]] = {
  "Reshape": _reshape, "Expand": _expand, "ConstantOfShape": _filled, "Range": _range, "Slice": _slice,
  "Transpose": _transpose, "MatMul": _matmul, "Concat": _concat, "Gather": _gather,
  "Unsqueeze": _unsqueeze, "GatherElements": _like_indices,
  **dict.fromkeys(
    "Add Sub Mul Div Pow Mod Min Max And Or Xor Where Equal Less LessOrEqual Greater GreaterOrEqual".split(),
    _elementwise,
  ),
  **dict.fromkeys(
    "Abs Cast Ceil Clip Cos Dropout Erf Exp Floor Gelu Identity IsNaN LayerNormalization Log LogSoftmax Neg "
    "Not Reciprocal Relu Sigmoid Sign Sin Softmax Softplus Sqrt Tanh Trilu".split(),
    _like_first,
  ),
}  # fmt: skip
