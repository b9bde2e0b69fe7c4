"""Square roots that are roots: sqrt(x)^2 = x and sqrt(x) sqrt(y) = sqrt(x y), in Z_p.

Squares of Z_p play the positive numbers (docs/verification.md, "Roots"); irrationals are drawn as
squares, and the root of what is none is void. Rows of an input are redrawn, one element at a time,
until the arguments over them are squares in every draw.
"""

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

import numpy as np

from mirage_onnx.errors import RejectionError
from mirage_onnx.ir import term as t
from mirage_onnx.ir.functions import EXPONENTS
from mirage_onnx.ir.term import Term
from mirage_onnx.ir.ugraph import UGraph
from mirage_onnx.verify import field
from mirage_onnx.verify.domain import Field
from mirage_onnx.verify.free_exponential import FreeExponential
from mirage_onnx.verify.interpret_term import interpret_terms
from mirage_onnx.verify.named import NamedArray
from mirage_onnx.verify.symbolic import PART, PREV, RUN, block_values

#: Rounds of redrawing: each leaves about half of the rows that were left.
ROUNDS = 40


class SquareRoots(Field):
  """``Field`` with roots of squares; irrationals are squares, since they are positive."""

  def __init__(self, draws: int, rng: np.random.Generator) -> None:
    super().__init__(draws, rng)
    self._irrational = {k: field.mul(v, v) for k, v in self._irrational.items()}

  def _root(self, x: np.ndarray, d: int) -> np.ndarray:
    if d != 2:
      return super()._root(x, d)
    return self._void_where(~field.is_square(x), field.square_root(x))


class FreeExponentialRoots(FreeExponential, SquareRoots):
  """Both at once: C3 order puts the roots below the components."""


def root_arguments(roots: Iterable[Term], graph: UGraph) -> tuple[Term, ...]:
  """What the roots of a region and a µGraph are taken of, where that holds no root itself."""
  found: dict[Term, None] = {}
  for node in t.walk(roots):
    if _is_root(node):
      found[node.args[0]] = None
  values = block_values(graph)
  for kernel in graph.kernels:
    for op in kernel.ops:
      exponent = op.value if op.op == "powr" else EXPONENTS.get(op.op)
      if _halves(exponent) and (whole := values[kernel.name, op.args[0]].term) is not None:
        found[whole] = None
  return tuple(a for a in found if all(_is_plain(n) for n in t.walk([a])))


def _halves(e: object) -> bool:
  return isinstance(e, Fraction) and e.denominator == 2


def _is_root(node: Term) -> bool:
  return node.op == t.POW and _halves(node.attr)


def _is_plain(node: Term) -> bool:
  """No root, and no part of a tiled value (``symbolic``)."""
  return not _is_root(node) and not node.op.startswith((PART, RUN, PREV))


def redraw(
  domain: Field,
  inputs: Mapping[str, NamedArray],
  arguments: Sequence[Term],
  extents: Mapping[str, int],
  rng: np.random.Generator,
) -> dict[str, NamedArray]:
  """Inputs at which every one of ``arguments`` is a square, in every draw and element.

  Where an argument is no square, one element of the input row that it depends on is redrawn: the
  first along the axes that the argument does not have.

  Raises:
      RejectionError: INCONCLUSIVE, some argument stays what it is.
  """
  result = {k: NamedArray(v.data.copy(), v.axes) for k, v in inputs.items()}
  for _ in range(ROUNDS):
    values = interpret_terms(domain, arguments, result, extents)
    bad = []
    for argument, value in zip(arguments, values, strict=True):
      x = domain.residues(value.data)
      missing = (x == field.VOID) | ~field.is_square(np.where(x == field.VOID, 0, x))
      if missing.any():
        bad.append((argument, NamedArray(missing, value.axes)))
    if not bad:
      return result
    for argument, missing in bad:
      _redraw_rows(domain, result, argument, missing, rng)
  raise RejectionError("INCONCLUSIVE", f"no inputs were found at which sqrt({bad[0][0]}) exists")


def _redraw_rows(
  domain: Field,
  inputs: Mapping[str, NamedArray],
  argument: Term,
  missing: NamedArray,
  rng: np.random.Generator,
) -> None:
  read = [str(n.attr) for n in t.walk([argument]) if n.op == t.INPUT]
  whole = [name for name in read if set(inputs[name].axes) >= set(missing.axes)]
  if not whole:
    text = f"the argument of sqrt({argument}) depends on no input over {missing.axes}"
    raise RejectionError("INCONCLUSIVE", text)
  x = inputs[whole[0]]
  slot = tuple(slice(None) if a in missing.axes else 0 for a in x.axes)
  mask = missing.aligned([a for a in x.axes if a in missing.axes])
  fresh = domain.random(rng, mask.shape[1:])
  rows = x.data[(slice(None), *slot)]
  repeated = np.concatenate([mask] * (domain.rows // domain.draws))
  x.data[(slice(None), *slot)] = np.where(repeated, fresh, rows)
