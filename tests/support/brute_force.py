"""Every one-kernel block graph within a bound, forwards from the loads, without any pruning.

All values that legal operations make of all values are enumerated, and those that equal the target
in numbers are kept. No axiom, no class of equal values and no code of the search is used but the
canonical text (``superopt/canonical.py``).

*Size* (``canonical_size``) counts every heavy value but loads, and every operation of the chains
between them: it belongs to the program, not to the way it was found. Each step of such a spelling
is a value of smaller size, so the closure, level by level, misses no program: a value found above
its own level is one whose normal form uses an operation that the setting has not (asserted).

*Numbers.* One array for all blocks and iterations, as in ``block_values``.
"""

from collections import defaultdict
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np
from block_values import Tiles, evaluate
from canonical_size import Sizes, operations

from mirage_onnx.ir import BlockOp, DType, Layout, Phase
from mirage_onnx.ir import term as t
from mirage_onnx.ir.term import Term
from mirage_onnx.superopt.canonical import Heavy, elementwise, heavy
from mirage_onnx.superopt.chain_form import chain_form

COMMUTES = frozenset({"add", "mul", "max", "min", "matmul"})
ACCUMULATORS = frozenset({"acc_sum", "acc_max", "acc_scaled"})
REDUCTIONS = frozenset({"sum", "rmax", "matmul"})
#: exp(x - y) as one step of size 2, for sets without a subtraction elsewhere.
SHIFTED = "exp-sub"
IN_LOOP = frozenset({"run_max", "prev", *ACCUMULATORS})


@dataclass(frozen=True)
class Setting:
  """What programs are made of: loads as they are cut, operations of ``ir/ugraph.py``.

  ``reduced``: axes that are reduced or contracted. ``most_axes``: of a value; more are left out.
  """

  loads: tuple[BlockOp, ...]
  ops: frozenset[str]
  reduced: frozenset[str]
  tiles: Tiles
  most_axes: int = 3


@dataclass(frozen=True, eq=False)
class Value:
  """A canonical value: its chain, phase, the units of size in it, and its numbers."""

  term: Term
  phase: Phase
  axes: tuple[str, ...]
  units: frozenset[int]
  data: np.ndarray


@dataclass
class Enumeration:
  """All values of a setting up to a size; ``heavies`` are those that their terms speak of."""

  setting: Setting
  sizes: Sizes = field(default_factory=Sizes)
  heavies: dict[Term, Heavy] = field(default_factory=dict)
  levels: list[list[Value]] = field(default_factory=list)
  seen: dict[tuple[Term, Phase], Value] = field(default_factory=dict)
  tried: int = 0

  def run(self, size):
    self.levels = [[]]
    for op in self.setting.loads:
      self._keep(self.setting.tiles.load(op), op, (), 0)
    for level in range(1, size + 1):
      self.levels.append([])
      for op, args in self._applications(level):
        self._keep(self._numbers(op, args), op, args, level)

  def _numbers(self, op, args):
    data = [a.data for a in args]
    if op.op == SHIFTED:
      shift = evaluate(replace(op, op="sub"), data, self.setting.tiles)
      return evaluate(replace(op, op="exp"), [shift], self.setting.tiles)
    return evaluate(op, data, self.setting.tiles)

  def equal_to(self, target, out, size):
    """The values over the axes ``out`` after the loop that have these numbers, up to ``size``.

    ``run`` goes one level less: of the last only the numbers are computed, unless they hit.
    """
    self.run(size - 1)
    found = [v for level in self.levels for v in level if self._hits(v.phase, v.data, target)]
    self.levels.append([])
    for op, args in self._applications(size):
      if op.phase is Phase.POST and op.axes == out:
        data = self._numbers(op, args)
        if self._hits(op.phase, data, target):
          value = self._keep(data, op, args, size)
          found += [value] if value else []
        else:
          self.tried += 1
    return found

  def _hits(self, phase, data, target):
    if phase is not Phase.POST or data.shape != target.shape:
      return False
    return bool(np.abs(data - target).max() <= 1e-9 * np.abs(target).max())

  def _keep(self, data, op, args, level):
    self.tried += 1
    if not np.isfinite(data).all():
      return None
    terms = tuple(a.term for a in args)
    if op.op in ("load", *REDUCTIONS, *IN_LOOP):
      made = heavy(op, terms)
      self.heavies.setdefault(made.leaf, made)
      term = made.leaf
    elif op.op == SHIFTED:
      term = chain_form(t.apply("exp", t.add(terms[0], t.mul(t.const(-1), terms[1]))))
    else:
      term = elementwise(op, terms)
    if (term, op.phase) in self.seen or (not term.args and term not in self.heavies):
      return None
    units = self.sizes.units(term, self.heavies)
    if len(units) != level:
      outside = set(operations(term, self.heavies)) - self.setting.ops
      assert len(units) > level or outside, f"{term} was missed at {len(units)}"
      return None
    value = Value(term, op.phase, op.axes, units, data)
    self.seen[term, op.phase] = value
    self.levels[level].append(value)
    return value

  # -- what can be applied to what

  def _applications(self, size):
    for v in list(self.levels[size - 1]):
      for op in self._unary(v):
        yield op, (v,)
    for u, v in self._pairs(size - 1):
      for op, args in self._binary(u, v):
        yield op, args
    if SHIFTED in self.setting.ops and size > 1:
      for u, v in self._pairs(size - 2):
        if len(axes := {*u.axes, *v.axes}) <= self.setting.most_axes:
          for args in ((u, v), (v, u)):
            yield self._op(SHIFTED, axes, u.phase), args

  def _pairs(self, size):
    for a in range(size + 1):
      for b in range(a + 1):
        shared = a + b - size
        if shared < 0 or shared > b:
          continue
        index = defaultdict(list)
        for v in self.levels[b]:
          for key in combinations(sorted(v.units), shared):
            index[v.phase, key].append(v)
        for u in list(self.levels[a]):
          for key in combinations(sorted(u.units), shared):
            for v in index[u.phase, key]:
              once = a != b or u.term.order <= v.term.order
              if once and len(u.units & v.units) == shared:
                yield u, v

  def _op(self, name, axes, phase, **more):
    return BlockOp(
      name, (), tuple(sorted(axes)), DType.F32, phase, Layout.ELEMENT, **more
    )  # fmt: skip

  def _unary(self, v):
    """Rules of ``ir/ugraph.py``: who may be reduced, who accumulated."""
    ops, loop = self.setting.ops, self.setting.tiles.loop
    for name in sorted(ops & {"exp", "sqrt", "recip", "neg"}):
      yield self._op(name, v.axes, v.phase)
    for name in sorted(ops & {"sum", "rmax"}):
      may = [a for a in v.axes if a in self.setting.reduced]
      for count in range(1, len(may) + 1):
        for gone in combinations(may, count):
          rest = set(v.axes) - set(gone)
          yield self._op(name, rest, v.phase, reduced=gone)
    if v.phase is Phase.LOOP and loop not in v.axes:
      for name in sorted(ops & {"acc_sum", "acc_max"}):
        yield self._op(name, v.axes, Phase.POST)
      if "run_max" in ops:
        yield self._op("run_max", v.axes, Phase.LOOP)
    made = self.heavies.get(v.term)
    if "prev" in ops and made is not None and made.op.op == "run_max":
      yield self._op("prev", v.axes, Phase.LOOP)

  def _binary(self, u, v):
    ops = self.setting.ops
    axes = {*u.axes, *v.axes}
    orders = [(u, v)] if u is v else [(u, v), (v, u)]
    if len(axes) <= self.setting.most_axes:
      for name in sorted(ops & {"add", "mul", "sub", "div", "max"}):
        op = self._op(name, axes, u.phase)
        for args in orders[: 1 if name in COMMUTES else 2]:
          yield op, args
    if "matmul" in ops and len(axes) <= self.setting.most_axes + 1:
      for k in sorted(self.setting.reduced & set(u.axes) & set(v.axes)):
        yield self._op("matmul", axes - {k}, u.phase, reduced=(k,)), (u, v)
    if "acc_scaled" in ops and u.phase is Phase.LOOP and self.setting.tiles.loop not in axes:
      for x, f in orders:
        if set(f.axes) <= set(x.axes):
          yield self._op("acc_scaled", x.axes, Phase.POST), (x, f)


def sizes_by_level(found):
  return {n: len(level) for n, level in enumerate(found.levels)}
