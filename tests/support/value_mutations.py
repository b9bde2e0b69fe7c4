"""Mistakes in what a block graph computes: operations, arguments, constants, exponents."""

from fractions import Fraction

from draft import Draft, depends, each, replaced

from mirage_onnx.ir.dtype import DType
from mirage_onnx.ir.functions import ELEMENTWISE

UNARY = tuple(name for name, e in ELEMENTWISE.items() if e.arity == 1)
BINARY = tuple(name for name, e in ELEMENTWISE.items() if e.arity == 2)
EXPONENT = {
  "square": Fraction(2), "sqrt": Fraction(1, 2), "rsqrt": Fraction(-1, 2), "recip": Fraction(-1),
}  # fmt: skip
SUM_OR_MAX = {
  "sum": "rmax", "rmax": "sum", "acc_sum": "acc_max", "acc_max": "acc_sum",
  "red_sum": "red_max", "red_max": "red_sum",
}  # fmt: skip


def other_function(kernel):
  """An elementwise function becomes another one of its arity."""
  for group in (UNARY, BINARY):
    for i, op in each(kernel, *group):
      for name in group:
        if name != op.op:
          yield Draft(kernel).set(i, op=name).done()


def sum_or_max(kernel):
  """A sum becomes a maximum or the other way round, at every level."""
  for i, op in each(kernel, *SUM_OR_MAX):
    yield Draft(kernel).set(i, op=SUM_OR_MAX[op.op]).done()
  for i, op in each(kernel, "run_max"):
    yield Draft(kernel).redirect(i, op.args[0]).done()


def operand_order(kernel):
  """The two operands change places (nothing happens where the operation commutes)."""
  for i, op in enumerate(kernel.ops):
    if len(op.args) == 2:
      yield Draft(kernel).set(i, args=op.args[::-1]).done()


def other_argument(kernel):
  """An argument becomes another earlier value over the same axes in the same phase."""
  return _arguments(kernel, lambda x, y: set(x.axes) == set(y.axes))


def broadcast_argument(kernel):
  """An argument becomes a value over other axes, so it is broadcast along the wrong ones."""
  return _arguments(kernel, lambda x, y: len(x.axes) == len(y.axes) and x.axes and x.axes != y.axes)


def _arguments(kernel, fits):
  for i, op in enumerate(kernel.ops):
    for at, a in enumerate(op.args):
      for b in range(i):
        x, y = kernel.ops[a], kernel.ops[b]
        if b != a and x.phase is y.phase and fits(x, y):
          yield Draft(kernel).argument(i, at, b).done()


def drop_operation(kernel):
  for i, op in each(kernel, *UNARY, "powr", "cast", "sum", "rmax"):
    yield Draft(kernel).redirect(i, op.args[0]).done()


def drop_operand(kernel):
  """A function of two values is left out: one of them stays."""
  for i, op in each(kernel, *BINARY, "matmul"):
    for a in op.args:
      yield Draft(kernel).redirect(i, a).done()


def duplicate_operation(kernel):
  for i, op in each(kernel, *UNARY, "powr"):
    yield Draft(kernel).then(i, op.op, i, value=op.value).done()


def duplicate_summand(kernel):
  """A value counts double."""
  for i in range(len(kernel.ops)):
    yield Draft(kernel).then(i, "add", i, i).done()


def constant(kernel):
  for i, op in each(kernel, "const"):
    c = op.value
    for value in (2 * c, c / 2, -c, c + 1, c - 1, Fraction(0), *([1 / c] if c else []), c * Fraction(11, 10)):
      if value != c:
        yield Draft(kernel).set(i, value=value).done()


def exponent(kernel):
  for i, op in each(kernel, "powr", *EXPONENT):
    e = op.value if op.op == "powr" else EXPONENT[op.op]
    for value in (-e, 2 * e, e / 2, e + 1, e - 1, Fraction(3 * e.numerator, e.denominator + 1)):
      if value not in (e, 0):
        yield Draft(kernel).set(i, op="powr", value=value).done()


def cast(kernel):
  """A cast too few or too many; exact arithmetic does not see it."""
  for i, op in each(kernel, "cast"):
    yield Draft(kernel).redirect(i, op.args[0]).done()
  for i, op in enumerate(kernel.ops):
    if op.op != "cast" and op.dtype is DType.F32:
      draft = Draft(kernel)
      narrow = draft.put("cast", i)
      yield draft.set(narrow, dtype=DType.F16).redirect(i, narrow).done()


def contraction(kernel):
  """A matmul contracts another axis, or none (an outer or elementwise product)."""
  axes = sorted({a for o in kernel.loads for a in o.axes})
  for i, op in each(kernel, "matmul"):
    for a in axes:
      if (a,) != op.reduced:
        yield Draft(kernel).set(i, reduced=(a,)).done()
    yield Draft(kernel).set(i, op="mul", reduced=()).done()


def reduced_axes(kernel):
  """A reduction goes over one axis more, less, or another."""
  yield from _over_other_axes(kernel, "sum", "rmax")


def extent_of_other_axis(kernel):
  """A mean divides by the length of something else."""
  yield from _over_other_axes(kernel, "extent")


def _over_other_axes(kernel, *names):
  axes = {a for o in kernel.loads for a in o.axes}
  for i, op in each(kernel, *names):
    more = [(*op.reduced, a) for a in sorted(axes - set(op.reduced))]
    less = [tuple(a for a in op.reduced if a != b) for b in op.reduced if len(op.reduced) > 1]
    others = [(a,) for a in sorted(axes - set(op.reduced))]
    for reduced in (*more, *less, *others):
      yield Draft(kernel).set(i, reduced=tuple(sorted(reduced))).done()


#: Numbers that a programmer has in mind, and the small extents at which a verifier tests.
LITERALS = (1, 2, 3, 4, 5, 7, 8, 11, 13, 16, 17, 19, 23, 64, 512)


def literal_for_extent(kernel):
  """A number stands where the length of an axis should."""
  for i, _ in each(kernel, "extent"):
    for n in LITERALS:
      yield Draft(kernel).set(i, op="const", reduced=(), value=Fraction(n)).done()


def epsilon(kernel):
  """The small number under a root is missing, elsewhere, or counted otherwise."""
  for i, op in each(kernel, "const"):
    if not 0 < op.value < Fraction(1, 1000):
      continue
    for j, use in each(kernel, "add"):
      if i not in use.args:
        continue
      (rest,) = (a for a in use.args if a != i)
      yield Draft(kernel).redirect(j, rest).done()
      yield Draft(kernel).set(j, op="sub").done()
      yield Draft(kernel).set(j, op="max").done()
      yield from _epsilon_after(kernel, i, j, rest)
      yield from _epsilon_before(kernel, i, j, rest)
    for factor in (0, -1, 10, Fraction(1, 10), 1 / op.value):
      yield Draft(kernel).set(i, value=op.value * factor).done()


def _epsilon_after(kernel, eps, add, rest):
  """f(x) + eps for f(x + eps)."""
  for k, root in each(kernel, *UNARY, "powr"):
    if root.args == (add,):
      draft = Draft(kernel).set(k, args=(rest,))
      yield draft.then(k, "add", k, eps).done()


def _epsilon_before(kernel, eps, add, rest):
  """(x + eps) / n for x / n + eps."""
  inner = kernel.ops[rest]
  if inner.op in ("div", "mul"):
    draft = Draft(kernel)
    moved = draft.put("add", inner.args[0], eps)
    draft.set(rest, args=(moved, inner.args[1]))
    yield draft.redirect(add, rest).done()


def place(kernel):
  """op(f(x)) becomes f(op(x)): before a function, reduction or product instead of after it."""
  for i, inner in enumerate(kernel.ops):
    if inner.op not in (*UNARY, "powr", "sum", "rmax", "matmul"):
      continue
    for j, outer in each(kernel, *UNARY, *BINARY, "powr"):
      if i not in outer.args or outer.phase is not inner.phase:
        continue
      at = outer.args.index(i)
      rest = (*outer.args[:at], *outer.args[at + 1 :])
      if any(depends(kernel, a, i) for a in rest):
        continue
      draft = Draft(kernel)
      draft.redirect(j, i, j)
      draft.set(j, args=replaced(outer.args, at, inner.args[0]))
      draft.set(i, args=(j, *inner.args[1:]))
      yield draft.done()
