"""Named axes: from positional steps to terms.

A union-find over (tensor, dimension) joins the dimensions that a step ties together (elementwise
operands, the two sides of a contraction); where no reshape regroups them, a class of dimensions is
an axis. Reshapes that do split classes into atoms (``factors.py``), each of which is an axis, and a
dimension is then the product of several. Dimensions of extent 1 are no axes: they only say where a
tensor is broadcast.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from math import prod

from mirage_onnx.errors import RejectionError
from mirage_onnx.ir import term as t
from mirage_onnx.ir.factors import groups
from mirage_onnx.ir.functions import to_term
from mirage_onnx.ir.program import Constant, Operand, Step
from mirage_onnx.ir.term import Term
from mirage_onnx.match.factors import Atom, Dimension, Factors, Regrouping, Union
from mirage_onnx.match.partitions import matmul_depth

#: Factors of a product: no kernel computes a thousandth of them.
MOST_ARGUMENTS = 4096
Shape = tuple[int, ...]
#: The axes of every dimension of a tensor, slowest first; none where its extent is 1.
Dims = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class NamedSteps:
  """Steps over named axes; axis names are arbitrary here (``canonical.py`` renames them)."""

  axes: Mapping[str, Dims]
  extents: Mapping[str, int]
  terms: Mapping[str, Term]

  def memory(self, name: str) -> tuple[str, ...]:
    """The axes of a tensor in memory order."""
    return tuple(dict.fromkeys(a for d in self.axes[name] for a in d))


def _shapes(steps: Iterable[Step], inputs: Mapping[str, Shape]) -> dict[str, Shape]:
  shapes = dict(inputs)
  for s in steps:
    assert s.output.shape is not None
    shapes[s.output.name] = tuple(int(d) for d in s.output.shape)
  return shapes


class _Ties:
  """The classes of dimensions, and what reshapes regroup."""

  def __init__(self, shapes: Mapping[str, Shape]) -> None:
    self.shapes = shapes
    self.union = Union[Dimension]()
    self.regroupings: list[Regrouping] = []

  def tie(self, step: Step) -> None:
    shapes = self.shapes
    out, out_shape = step.output.name, shapes[step.output.name]
    names = [i for i in step.inputs if isinstance(i, str)]
    if step.op == "matmul":
      _tie_matmul(self.union, step, shapes)
    elif step.op == "transpose":
      assert isinstance(step.attr, tuple)
      for j, i in enumerate(step.attr):
        self.join(names[0], i, out, j)
    elif step.op == "reshape":
      self._reshape(names[0], out)
    else:  # elementwise, expand, and reductions (which keep their dims): from the right
      for name in names:
        rank = len(shapes[name])
        for i in range(rank):
          self.join(name, i, out, len(out_shape) - rank + i)

  def join(self, name: str, i: int, out: str, j: int) -> None:
    if self.shapes[name][i] > 1 and self.shapes[out][j] > 1:
      self.union.join((name, i), (out, j))

  def _reshape(self, name: str, out: str) -> None:
    try:
      found = groups(self.shapes[name], self.shapes[out])
    except ValueError as e:
      raise RejectionError("AXES_CONFLICT", str(e), (out,)) from None
    for before, after in found:
      if len(before) == len(after) == 1:
        self.join(name, before[0], out, after[0])
      else:
        left, right = (tuple((x, i) for i in own) for x, own in ((name, before), (out, after)))
        self.regroupings.append(Regrouping(left, right, out))

  def factors(self) -> Factors:
    """The atoms of all dimensions."""
    made = Factors(self.union.find, lambda d: self.shapes[d[0]][d[1]])
    made.split(self.regroupings)
    return made


def _tie_matmul(u: Union[Dimension], step: Step, shapes: Mapping[str, Shape]) -> None:
  a, b = (str(i) for i in step.inputs)
  out = step.output.name
  sa, sb, so = shapes[a], shapes[b], shapes[out]
  ka, kb = matmul_depth(len(sa), len(sb))
  if sa[ka] > 1:
    u.join((a, ka), (b, kb))
  matrix_out = len(so)
  if len(sb) > 1:
    matrix_out -= 1
    if sb[-1] > 1:
      u.join((b, len(sb) - 1), (out, matrix_out))
  if len(sa) > 1:
    matrix_out -= 1
    if sa[-2] > 1:
      u.join((a, len(sa) - 2), (out, matrix_out))
  for name, shape in ((a, sa), (b, sb)):
    batch = len(shape) - 2
    for i in range(batch):
      j = matrix_out - batch + i
      if shape[i] > 1 and so[j] > 1:
        u.join((name, i), (out, j))


def _constant(c: Constant) -> Term:
  return t.power(t.const(c.base), c.exponent)


def _exponent(c: Operand) -> Fraction:
  if isinstance(c, Constant) and isinstance(c.base, Fraction) and c.exponent == 1:
    return c.base
  raise RejectionError("OP_FORM", "a power with an exponent that is not a rational constant")


def name_axes(
  steps: tuple[Step, ...], inputs: Mapping[str, Shape], constants: Mapping[str, Constant],
  alike: Sequence[str] = (),
) -> NamedSteps:  # fmt: skip
  """Axes and terms of ``steps``; ``inputs`` are the shapes of the tensors they read.

  ``alike``: results that one kernel may make, so those of one shape have the same axes.

  Raises:
      RejectionError: as ``axes_of``; OP_FORM, CONE_LIMIT.
  """
  axes, extents = axes_of(steps, inputs, alike)
  terms: dict[str, Term] = {
    name: _constant(constants[name])
    if name in constants
    else t.input_(name, (a for d in axes[name] for a in d))
    for name in inputs
  }
  for s in steps:
    made = terms[s.output.name] = _term(s, axes, terms, constants)
    if len(made.args) > MOST_ARGUMENTS:  # what is multiplied with itself again and again has 2**n factors
      name = s.output.name
      raise RejectionError("CONE_LIMIT", f"{name} is of more than {MOST_ARGUMENTS} factors", (name,))
  return NamedSteps(axes, extents, terms)


def axes_of(
  steps: Iterable[Step], inputs: Mapping[str, Shape], alike: Sequence[str] = ()
) -> tuple[dict[str, Dims], dict[str, int]]:
  """The axes of every tensor of ``steps``, named in the order of their first use, and their extents.

  Raises:
      RejectionError: AXES_CONFLICT where one tensor would have an axis twice, or where reshapes
          split dimensions in ways that have no common factors.
  """
  steps = tuple(steps)
  shapes = _shapes(steps, inputs)
  ties = _Ties(shapes)
  for s in steps:
    ties.tie(s)
  for a, b in combinations(alike, 2):
    if shapes[a] == shapes[b]:
      for i in range(len(shapes[a])):
        ties.join(a, i, b, i)
  factors = ties.factors()
  label: dict[Atom, str] = {}
  extents: dict[str, int] = {}
  known: dict[Dimension, tuple[str, ...]] = {}
  axes: dict[str, Dims] = {}
  for name, shape in shapes.items():
    own: list[tuple[str, ...]] = []
    for i, size in enumerate(shape):
      if size == 1:
        own.append(())
        continue
      root = ties.union.find((name, i))
      if root not in known:
        parts = factors.atoms(root)
        known[root] = tuple(label.setdefault(a, f"x{len(label):03d}") for a, _ in parts)
        extents |= {label[a]: n for a, n in parts}
      own.append(known[root])
    axes[name] = tuple(own)
    flat = [a for d in own for a in d]
    if len(set(flat)) < len(flat) or prod(extents[a] for a in flat) != prod(shape):
      raise RejectionError("AXES_CONFLICT", f"{name} would have one axis twice", (name,))
  return axes, extents


def _term(
  step: Step,
  axes: Mapping[str, Dims],
  terms: Mapping[str, Term],
  constants: Mapping[str, Constant],
) -> Term:
  def value(operand: Operand) -> Term:
    if isinstance(operand, Constant):
      return _constant(operand)
    if operand in constants:
      return _constant(constants[operand])
    return terms[operand]

  args = [value(i) for i in step.inputs] if step.op != "pow" else [value(step.inputs[0])]
  if step.op in ("cast", "transpose", "reshape", "expand"):
    return args[0]
  if step.op == "pow":
    return t.power(args[0], _exponent(step.inputs[1]))
  if step.op == "matmul":
    a = axes[str(step.inputs[0])]
    return t.reduce_(t.SUM, a[-1], t.mul(*args))
  if step.op in ("sum", "mean", "rmax"):
    assert isinstance(step.attr, tuple)
    source = axes[str(step.inputs[0])]
    reduced = [x for i in step.attr for x in source[i]]
    if step.op == "rmax":
      return t.reduce_(t.MAXR, reduced, args[0])
    total = t.reduce_(t.SUM, reduced, args[0])
    return t.mul(t.power(t.extent(reduced), -1), total) if step.op == "mean" else total
  return to_term(step.op, *args)
