"""Where parts meet: of what is concatenated before a tensor, and of what is sliced behind it."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from math import prod

from mirage_onnx.errors import RejectionError
from mirage_onnx.ir.program import Program, Step
from mirage_onnx.match.boxes import (
  Box,
  Dim,
  Factor,
  beside,
  cells,
  clipped,
  moved,
  put,
  refined,
  reshaped,
  whole,
  whole_box,
)

#: Parts of a tensor that are told apart: what is concatenated with itself again and again has 2**n.
MOST_PARTS = 1024
REDUCING = ("sum", "mean", "rmax")


class Partitions:
  """The partitions of the tensors of some steps, by the tensors' names; ``makers`` in order.

  Raises:
      RejectionError: AXES_CONFLICT where parts meet inside what another step needs whole, OP_FORM
          where they are more than ``MOST_PARTS``.
  """

  def __init__(self, program: Program, makers: Mapping[str, Step]) -> None:
    self._program, self._makers = program, makers
    #: Of those that are cut at all.
    self._parts: dict[str, Box] = {}
    self._sliced: dict[str, Box] = {}
    for name, step in makers.items():
      if step.op == "concat" or not self._parts.keys().isdisjoint(step.inputs):
        self._parts[name] = self._of(step, self.parts)
    if any(s.op in REDUCING for s in makers.values()):
      self._sliced = self._demanded()
      for name, step in makers.items():
        if not self._sliced.keys().isdisjoint(step.inputs):
          with suppress(RejectionError):
            self._sliced[name] = self._of(step, self.sliced)

  def shape(self, name: str) -> tuple[int, ...]:
    if name in self._makers:
      return tuple(int(d) for d in self._makers[name].output.shape or ())
    return self._program.numbers(name) or ()

  def parts(self, name: str) -> Box:
    """Cut where parts of concatenations meet: no box across that is computed."""
    return self._parts.get(name) or whole_box(self.shape(name))

  def sliced(self, name: str) -> Box:
    """As if all were also cut where slices of the same elements of inputs begin and end."""
    return self._sliced.get(name) or self.parts(name)

  def boxes(self, name: str) -> list[Box]:
    """Boxes that make up a tensor, as few as the concatenations in front of it allow.

    Raises:
        RejectionError: OP_FORM, they are more than ``MOST_PARTS``.
    """
    step = self._makers.get(name)
    if step is None or step.op not in ("transpose", "reshape", "cast", "neg", "concat"):
      return cells(self.parts(name))
    read = [str(i) for i in step.inputs]
    attr = step.attr if isinstance(step.attr, tuple) else ()
    found, offset = [], 0
    for own, x in ((self.boxes(x), x) for x in read):
      for b in own:
        if step.op == "transpose":
          b = tuple(b[i] for i in attr)
        elif step.op == "reshape":
          try:
            b = reshaped(b, self.shape(x), self.shape(name))
          except RejectionError:
            return cells(self.parts(name))
        elif step.op == "concat":
          if (dim := moved(b[attr[0]], self.shape(name)[attr[0]], offset)) is None:
            return cells(self.parts(name))
          b = put(b, attr[0], dim)
        found.append(b)
        _check_count(name, len(found))
      offset += self.shape(x)[attr[0]] if step.op == "concat" else 0
    return found

  def aligned(self, name: str, box: Box) -> Box:
    """What a box of an elementwise result needs of an operand, which may be broadcast."""
    shape = self.shape(name)
    ends = box[len(box) - len(shape) :]
    return tuple(whole(1) if n == 1 else d for n, d in zip(shape, ends, strict=True))

  def _of(self, step: Step, parts: Callable[[str], Box]) -> Box:
    """The partition of what a step yields from those of what it reads."""
    shape = tuple(int(d) for d in step.output.shape or ())
    read = [i for i in step.inputs if isinstance(i, str)]
    own = [parts(i) for i in read]
    attr = step.attr if isinstance(step.attr, tuple) else ()
    match step.op:
      case "slice":
        return put(own[0], attr[0], clipped(own[0][attr[0]], *attr[1:]))
      case "concat":
        dims = list(zip(*own, strict=True))
        made = tuple((beside if i == attr[0] else _all)(d) for i, d in enumerate(dims))
        _check_count(step.output.name, prod(len(f.bounds) - 1 for d in made for f in d))
        return made
      case "gather":
        return (whole(shape[0]), *own[0][1:])
      case "stored":
        return whole_box(shape)
      case "transpose":
        return tuple(own[0][i] for i in attr)
      case "reshape":
        return reshaped(own[0], self.shape(read[0]), shape)
      case "matmul":
        pairs = matmul_dims(*(len(self.shape(i)) for i in read))
      case op if op in REDUCING:
        return tuple(whole(1) if i in attr else d for i, d in enumerate(own[0]))
      case _:
        ranks = [len(self.shape(i)) for i in read]
        pairs = [
          tuple(k if (k := j - len(shape) + r) >= 0 else None for r in ranks) for j in range(len(shape))
        ]
    found = []
    for n, pair in zip(shape, pairs, strict=True):
      dims = [own[k][i] for k, i in enumerate(pair) if i is not None and self.shape(read[k])[i] == n]
      found.append(_all([whole(n), *dims]))
    return tuple(found)

  def _demanded(self) -> dict[str, Box]:
    """The inputs, cut where slices of what is computed from their elements begin and end."""
    found: dict[str, Box] = {}
    for step in reversed(list(self._makers.values())):
      out = found.get(step.output.name)
      attr = step.attr if isinstance(step.attr, tuple) else ()
      for k, name in enumerate(step.inputs):
        if not isinstance(name, str):
          continue
        shape = self.shape(name)
        with suppress(RejectionError):
          if step.op == "slice":
            axis, *ends = attr
            bounds = sorted({0, *ends, shape[axis]})
            cut = put(whole_box(shape), axis, (Factor(shape[axis], tuple(bounds)),))
          elif step.op == "matmul":
            cut = self._operand(step, k, out)
          elif step.op == "gather":
            if out is None or k:
              continue
            cut = (whole(shape[0]), *out[1:])
          elif out is None or step.op in ("concat", "stored", *REDUCING):
            continue
          elif step.op == "transpose":
            cut = tuple(out[attr.index(i)] for i in range(len(shape)))
          elif step.op == "reshape":
            cut = reshaped(out, self.shape(step.output.name), shape)
          else:
            cut = self.aligned(name, out)
          both = zip(found.get(name) or whole_box(shape), cut, strict=True)
          found[name] = tuple(refined(a, b) for a, b in both)
    return {x: b for x, b in found.items() if x not in self._makers}

  def _operand(self, step: Step, k: int, out: Box | None) -> Box:
    """An operand of a product, cut as ``out`` and where parts of the other operand meet."""
    names = [str(i) for i in step.inputs]
    shapes = [self.shape(i) for i in names]
    depth = matmul_depth(*map(len, shapes))
    dims = list(whole_box(shapes[k]))
    dims[depth[k]] = _all([self.parts(n)[d] for n, d in zip(names, depth, strict=True)])
    for j, pair in enumerate(matmul_dims(*map(len, shapes)) if out else ()):
      if out and (i := pair[k]) is not None and shapes[k][i] > 1:
        dims[i] = out[j]
    return tuple(dims)


def matmul_depth(a: int, b: int) -> tuple[int, int]:
  """The dimension of each operand of these ranks that a product runs over."""
  return a - 1, max(b - 2, 0)


def matmul_dims(a: int, b: int) -> list[tuple[int | None, ...]]:
  """For each dimension of a product, which dimensions of operands of these ranks it is."""
  batch = max(a - 2, b - 2, 0)
  found: list[tuple[int | None, ...]] = [
    tuple(k if (k := j - batch + rank - 2) >= 0 else None for rank in (a, b)) for j in range(batch)
  ]
  found += [(a - 2, None)] if a > 1 else []
  found += [(None, b - 1)] if b > 1 else []
  return found


def _check_count(name: str, parts: int) -> None:
  if parts > MOST_PARTS:
    raise RejectionError("OP_FORM", f"{name} is concatenated of more than {MOST_PARTS} parts", (name,))


def _all(partitions: list[Dim] | tuple[Dim, ...]) -> Dim:
  found = partitions[0]
  for p in partitions[1:]:
    found = refined(found, p)
  return found
