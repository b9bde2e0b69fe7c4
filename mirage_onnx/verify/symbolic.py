"""The term that each block value of a µGraph is, where there is one.

A reduction over an axis that the kernel cuts becomes the reduction over the whole axis under a
mark, one per cut,

    part@loop/k0(x)   x, as far as one iteration sees its axis
    part@rank/k0(x)   as far as one rank of the cluster does
    part@a3/k0(x)     as far as one block of the grid does
    run(x), prev(run(x))   a maximum over the iterations so far, and before this one

and accumulators, cluster reductions and sums over part axes take marks away again. A rescaled sum
is undone by exp(a) exp(b) = exp(a + b): for f = exp(prev(m) - m) the factors of the iterations
after t multiply to exp(m_t - m_last), so acc_scaled(sum(g exp(s - m)), f) = sum(g exp(s - m_last));
in the same way red_sum(part(sum(g exp(s - part(m)))) exp(part(m) - m)) = sum(g exp(s - m)).

A value with no such reading (a sum of tiles that are not rescaled alike) has the term None.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from mirage_onnx.ir import term as t
from mirage_onnx.ir.block_ops import MAXIMA, OVER_AXES, Kind, kind_of, merge_of
from mirage_onnx.ir.functions import ELEMENTWISE, to_term
from mirage_onnx.ir.rows import covered
from mirage_onnx.ir.term import Term
from mirage_onnx.ir.ugraph import BlockOp, Kernel, UGraph, is_part_axis, part_axis

PART, RUN, PREV = "part@", "run", "prev"

#: Axis -> names of the marks that a reduction over it gets, the first to be undone last.
Cuts = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class SymbolicValue:
  """A block value: its term, and how the axes it still has are cut."""

  term: Term | None
  cuts: Cuts

  @property
  def marks(self) -> frozenset[str]:
    """The parts that its elements are in."""
    return frozenset(m for by in self.cuts.values() for m in by)


def block_values(graph: UGraph) -> dict[tuple[str, int], SymbolicValue]:
  """(kernel, index) -> its reading; inputs of terms have the names of the graph's tensors."""
  tensors: dict[str, Term | None] = {
    x.name: t.input_(x.name, x.axes) for x in graph.tensors if x.role in ("input", "weight")
  }
  result = {}
  for kernel in graph.kernels:
    values: list[SymbolicValue] = []
    for index, op in enumerate(kernel.ops):
      values.append(_value(kernel, op, [values[a] for a in op.args], tensors))
      result[kernel.name, index] = values[-1]
    for save in kernel.saves:
      tensors[save.tensor] = values[save.arg].term
  return result


def _value(
  kernel: Kernel, op: BlockOp, args: list[SymbolicValue], tensors: Mapping[str, Term | None]
) -> SymbolicValue:
  if op.op == "load":
    return SymbolicValue(tensors[op.tensor], _load_cuts(kernel, op))
  cuts = {a: by for x in args for a, by in x.cuts.items()}
  terms = [a.term for a in args]
  known = [x for x in terms if x is not None]
  if len(known) < len(terms):
    return SymbolicValue(None, {a: by for a, by in cuts.items() if a not in op.reduced})
  if op.op in OVER_AXES:
    left = {a: by for a, by in cuts.items() if a not in op.reduced}
    return SymbolicValue(_reduce(op, known, cuts), left)
  return SymbolicValue(_inner(kernel, op, known), cuts)


def _load_cuts(kernel: Kernel, op: BlockOp) -> Cuts:
  """The grid's mark first: it is undone after the rank's, and that after the loop's."""
  found: dict[str, tuple[str, ...]] = {}
  for axis in op.imap:
    if axis is not None:
      found[axis] = (f"{PART}{part_axis(axis, kernel.name)}",)
  for axis, level in ((op.cmap, "rank"), (op.fmap, "loop")):
    if axis is not None:
      found[axis] = (*found.get(axis, ()), f"{PART}{level}/{kernel.name}")
  return found


def _reduce(op: BlockOp, args: list[Term], cuts: Cuts) -> Term | None:
  result: Term | None = t.mul(*args)
  kind = merge_of(op.op).reduction
  for axis in op.reduced:
    if is_part_axis(axis):
      result = _undo(f"{PART}{axis}", result, kind)
  axes = [a for a in op.reduced if not is_part_axis(a)]
  if result is None or not axes:
    return result
  result = t.reduce_(kind, axes, result)
  for mark in _order(m for a in axes for m in cuts.get(a, ())):
    result = t.apply(mark, result)
  return result


def _order(marks: Iterable[str]) -> list[str]:
  """Loop outermost, then rank, then the grid."""
  level = {f"{PART}loop": 2, f"{PART}rank": 1}
  return sorted(dict.fromkeys(marks), key=lambda m: (level.get(m.split("/")[0], 0), m))


def _inner(kernel: Kernel, op: BlockOp, args: list[Term]) -> Term | None:
  kind = kind_of(op.op)
  if kind is None:
    return to_term(op.op, *args) if op.op in ELEMENTWISE else None
  return _RULES[kind](kernel, op, args)


def _constant(_: Kernel, op: BlockOp, args: list[Term]) -> Term:
  return t.extent(op.reduced) if op.value is None else t.const(op.value)


def _pointwise(_: Kernel, op: BlockOp, args: list[Term]) -> Term:
  return t.power(args[0], op.value) if isinstance(op.value, Fraction) else args[0]


def _accumulator(kernel: Kernel, op: BlockOp, args: list[Term]) -> Term | None:
  return _undo(f"{PART}loop/{kernel.name}", args[0], merge_of(op.op).reduction)


def _rescaled(kernel: Kernel, op: BlockOp, args: list[Term]) -> Term | None:
  return _undo_rescaled(f"{PART}loop/{kernel.name}", *args)


def _cluster(kernel: Kernel, op: BlockOp, args: list[Term]) -> Term | None:
  return _undo(f"{PART}rank/{kernel.name}", args[0], merge_of(op.op).reduction)


def _running(_: Kernel, op: BlockOp, args: list[Term]) -> Term | None:
  """Rules know maxima only."""
  return t.apply(RUN, args[0]) if op.op in MAXIMA else None


def _previous(_: Kernel, op: BlockOp, args: list[Term]) -> Term:
  return t.apply(PREV, args[0])


#: Kind of operator -> its term, by kernel, operator and terms of the arguments; None: not known.
_RULES = covered("verify/symbolic.py", {
  Kind.CONSTANT: _constant,
  Kind.POINTWISE: _pointwise,
  Kind.ACCUMULATOR: _accumulator,
  Kind.RESCALED: _rescaled,
  Kind.RUNNING: _running,
  Kind.PREVIOUS: _previous,
  Kind.CLUSTER: _cluster,
}, {*Kind} - {Kind.LOAD, Kind.CONTRACTION, Kind.REDUCTION})  # fmt: skip


def _undo(mark: str, x: Term | None, kind: str) -> Term | None:
  """The sum or maximum over all parts of a value, or None if it is not a whole one then."""
  if x is None:
    return None
  factors = x.args if x.op == t.MUL else (x,)
  marked = [f for f in factors if f.op == mark]
  if len(marked) != 1 or (kind == t.MAXR and len(factors) > 1):
    return None
  if _under_marks(marked[0]).op != kind:
    return None
  others = [f for f in factors if f is not marked[0]]
  whole = _with_factors(marked[0].args[0], others)
  return whole if whole is not None and not _holds(whole, mark) else None


def _undo_rescaled(loop: str, x: Term, f: Term) -> Term | None:
  """acc_scaled(part(sum(g exp(s - m))), exp(prev(m) - m)) = sum(g exp(s - m_last))."""
  runs = [n for n in t.walk([f]) if n.op == RUN]
  if x.op != loop or len(runs) != 1:
    return None
  running = runs[0]
  last = _undo(loop, running.args[0], t.MAXR)
  minus = t.mul(t.const(-1), running)
  if last is None or f is not t.apply("exp", t.add(t.apply(PREV, running), minus)):
    return None
  to_last = t.apply("exp", t.add(running, t.mul(t.const(-1), last)))
  whole = _with_factors(x.args[0], [to_last])
  return whole if whole is not None and not _holds(whole, RUN, loop) else None


def _with_factors(x: Term, others: list[Term]) -> Term | None:
  """``x * others`` with the factors inside the sum under x's marks, exponentials merged."""
  if not others:
    return x
  if x.op.startswith(PART):
    inner = _with_factors(x.args[0], others)
    return None if inner is None else t.apply(x.op, inner)
  if x.op != t.SUM or not isinstance(x.attr, tuple):
    return None
  if any(a in x.attr for f in others for a in f.axes):
    return None
  body = x.args[0]
  factors = [*(body.args if body.op == t.MUL else (body,)), *others]
  exponents = [f.args[0] for f in factors if f.op == "exp"]
  rest = [f for f in factors if f.op != "exp"]
  merged = [t.apply("exp", t.add(*exponents))] if exponents else []
  return t.reduce_(t.SUM, x.attr, t.mul(*rest, *merged))


def _under_marks(x: Term) -> Term:
  while x.op.startswith(PART):
    x = x.args[0]
  return x


def _holds(x: Term, *heads: str) -> bool:
  return any(n.op in heads for n in t.walk([x]))
