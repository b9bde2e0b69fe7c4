"""What some seeds are asked for: an operation with a type and a layout that are seldom drawn.

From ``FIRST`` on all seeds but every ``EVERY``-th have a wish; the program is drawn until it has
that value. What cannot be, and why, is said by ``unreachable``.
"""

from collections import Counter
from functools import partial
from typing import NamedTuple

from random_kernel_block import BINARY, COMPARISONS, UNARY
from random_kernel_forms import FORMS, behind, contract, reduction, stretched
from random_kernel_steps import pick

from mirage_onnx.ir import DType, Layout

#: Seeds before this one are as they come; attempts before a wish is dropped.
FIRST, EVERY, PATIENCE = 500, 3, 160
ELEMENTWISE = (*UNARY, "powr", *BINARY, *COMPARISONS, "select")
#: What a chain of steps can consist of.
CHAINED = (*ELEMENTWISE, "load", "cast")
MAXIMA = ("rmax", "acc_max", "red_max")
#: Reductions -> what is drawn to have such a value.
REDUCED = {
  "rmax": "rmax", "acc_max": "rmax", "red_max": "rmax", "sum": "sum", "acc_sum": "sum",
  "red_sum": "sum", "acc_scaled": "online", "run_max": "online", "prev": "online",
}  # fmt: skip
#: Of these the sums are kept in fp32, and so is a running maximum, by the rules of a block graph.
WIDE = ("matmul", "sum", "acc_sum", "acc_scaled", "red_sum", "run_max", "prev")
TYPES = (DType.F16, DType.BF16, DType.F32)
#: Where a chain of operations has to be in a contraction for its values to lie so.
PLACES = {
  Layout.A_FRAG: "A", Layout.B_FRAG: "B", Layout.DEPTH: "depth", Layout.ROW: "row",
  Layout.COLUMN: "column", Layout.C_FRAG: "result", Layout.UNIFORM: "scalar",
  Layout.SHARED: "rest in the loop", Layout.ELEMENT: "rest", Layout.VECTOR: "no contraction",
}  # fmt: skip


class Wish(NamedTuple):
  """A cell of the table of ``random_kernel_tables``."""

  op: str
  dtype: DType
  layout: Layout

  @property
  def cell(self):
    return f"{self.op} {self.dtype} {self.layout}"

  @property
  def values(self):
    """How many of them: most chains have several."""
    return 1 if self.op in SINGLE else 2

  def form(self, rng):
    if self.op == "load" and self.layout is Layout.ELEMENT:
      return contract  # only beside what a streaming kernel does behind its loop
    form = pick(rng, FORMS)
    if self.op not in (*CHAINED, *REDUCED) or rng.random() < 0.3:
      return form
    if self.op in REDUCED and self.layout in (Layout.A_FRAG, Layout.B_FRAG, Layout.DEPTH):
      return partial(behind, how=REDUCED[self.op], layout=self.layout)
    if self.op in REDUCED and self.layout in (Layout.SHARED, Layout.VECTOR):
      return partial(reduction, whole=rng.random() < 0.7)
    return partial(stretched, place=PLACES[self.layout], reduced=REDUCED.get(self.op, ""))

  def half(self, rng, half):
    if self.dtype.is_half or self.op == "load":
      return self.dtype
    return rng.choice(TYPES[:2]) if self.op == "cast" else half


def unreachable(op, dtype, layout):
  """Why no value is so, or nothing."""
  fragment = layout in (Layout.A_FRAG, Layout.B_FRAG)
  if op in WIDE and dtype is not DType.F32:
    return "sums and running maxima are kept in fp32"
  if op in ("const", "extent") and (dtype, layout) != (DType.F32, Layout.UNIFORM):
    return "a number is one fp32 value for the whole block"
  if op == "matmul" and (fragment or layout in (Layout.DEPTH, Layout.VECTOR)):
    return "the result of a contraction lies as a result"
  if layout is Layout.ELEMENT and op in ("run_max", "prev"):
    return "what no lanes have is a shared tile in the loop"
  return ""


OPS = (*CHAINED, *MAXIMA, *WIDE)
#: What a program mostly has one of: a choice is several operations.
SINGLE = ("load", "cast", *MAXIMA, *WIDE, *COMPARISONS, "select")
#: Operations that are drawn often, and layouts that most values have.
FREQUENT = ("add", "sub", "mul", "div", "max", "min", "abs", "square", "sigmoid")
COMMON = (Layout.C_FRAG, Layout.VECTOR, Layout.A_FRAG, Layout.B_FRAG)


def comes_often(op, dtype, layout):
  """Whether such values need not be wished for."""
  if op == "load":
    return layout is not Layout.ELEMENT
  if op == "cast":
    return dtype.is_half and layout not in (Layout.SHARED, Layout.ELEMENT)
  if op not in ELEMENTWISE:
    seldom = (Layout.A_FRAG, Layout.B_FRAG, Layout.DEPTH, Layout.COLUMN, Layout.ELEMENT)
    return op in WIDE and layout not in seldom
  if dtype is DType.F32 and layout in (Layout.C_FRAG, Layout.VECTOR):
    return True
  return op in FREQUENT and (layout in COMMON or (dtype, layout) == (DType.F32, Layout.ROW))


#: What comes singly twice.
WISHES = tuple(
  Wish(op, dtype, layout)
  for op in (*OPS, *SINGLE)
  for dtype in TYPES
  for layout in Layout
  if not (unreachable(op, dtype, layout) or comes_often(op, dtype, layout))
)


def missing(known):
  """Cells that could be and are not among ``known``, and why the others cannot be."""
  cells = [Wish(op, t, x) for op in (*OPS, "const", "extent") for t in TYPES for x in Layout]
  reasons = Counter(unreachable(*c) for c in cells)
  never = [c.cell for c in cells if not unreachable(*c) and c.cell not in known]
  lines = [f"never: {', '.join(never)}"] if never else []
  return [*lines, *(f"{n} cells cannot be: {why}" for why, n in reasons.items() if why)]


def wish_of(seed, attempt):
  """The wish of a seed, as long as there is patience; one after the other."""
  if seed < FIRST or seed % EVERY == 0 or attempt >= PATIENCE:
    return None
  return WISHES[(seed - seed // EVERY) % len(WISHES)]
