"""The steps of a thread graph in the order of ``op_order.py``, with barriers.

Elementwise ops are steps of their own until then; those of one form that stand side by side become
one. A run keeps its order where no other has fewer barriers, or where that would hold more values
at once than registers are there for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mirage_onnx.ir.block_ops import CLUSTER, Kind, kind_of
from mirage_onnx.lower import steps as do
from mirage_onnx.lower.barriers import Unordered, unordered_behind, with_barriers
from mirage_onnx.lower.dataflow import made_of
from mirage_onnx.lower.lowered import Lowered
from mirage_onnx.lower.op_order import Order, OrderedStep, fewest_barriers
from mirage_onnx.lower.steps import ThreadBarrier, ThreadStep, ThreadSteps

_Steps = tuple[ThreadStep, ...]
#: Row tiles up to which the loads of a contraction that reads device memory take few registers.
_MOST_ROWS = 4


def merged(steps: Sequence[ThreadStep]) -> _Steps:
  """Neighbouring elementwise steps of one form as one."""
  found: list[ThreadStep] = []
  for step in steps:
    last = found[-1] if found else None
    if isinstance(step, do.ThreadRun) and isinstance(last, do.ThreadRun) and step.form == last.form:
      touched = tuple(dict.fromkeys((*last.touched, *step.touched)))
      found[-1] = do.ThreadRun(step.index, last.ops + step.ops, last.form, touched=touched)
    else:
      found.append(step)
  return tuple(found)


def as_written(graph: ThreadSteps) -> ThreadSteps:
  """The graph with barriers, its steps in the order in which they came to be."""
  runs = (graph.before, graph.body, graph.after)
  return with_barriers(ThreadSteps(*map(merged, runs)))


def arranged(lowering: Lowered, graph: ThreadSteps, room: int) -> ThreadSteps:
  """The graph with barriers, as few as any order has; ``room``: further registers of a lane."""
  sizes: dict[int, int] = {}
  for held in lowering.made:
    size = lowering.warps.registers(held.form)
    sizes[held.index] = sizes.get(held.index, 0) + (-(-size // 2) if held.packed else size)
  runs = [graph.before, graph.body, graph.after]
  for r in range(3):
    first = runs[r][:1] if runs[r] and isinstance(runs[r][0], do.Advance) else ()
    steps, loop = runs[r][len(first) :], r == 1 and not first
    behind = Unordered() if first else unordered_behind(*runs[:r])
    nodes = [node(lowering, s, behind) for s in steps]
    for n, own in enumerate(nodes):
      if _wide(lowering, steps[n], own):
        nodes[n] = replace(own, uses=own.uses.union(*(x.makes for x in nodes[:n])))
    so_far = with_barriers(ThreadSteps(*runs[: r + 1], *[()] * (2 - r)))
    written = (so_far.before, so_far.body, so_far.after)[r]
    if order := fewest_barriers(nodes, _cost(written), loop=loop):
      later = (node(lowering, s, behind) for steps in runs[r + 1 :] for s in steps)
      kept = frozenset[int]().union(*(x.uses for x in later))
      moved = [nodes[i] for phase in order.phases for i in phase]
      if most_held(moved, sizes, kept) - most_held(nodes, sizes, kept) <= max(0, room):
        runs[r] = (*first, *_in_order(steps, order))
  return as_written(ThreadSteps(*runs))


def _wide(lowering: Lowered, step: ThreadStep, own: OrderedStep) -> bool:
  """Whether a contraction has so many loads under way that it stays behind what it stood behind.

  ptxas has been seen to spill where two such follow each other with no barrier between.
  """
  if not isinstance(step, do.Contract):
    return False
  near = {h.index for h in lowering.made} | lowering.homes.keys()
  rows = lowering.assignment.products[step.index].a.g
  far = any(lowering.ops[i].op == "load" for i in own.uses - near)
  return far and bool(rows) and lowering.warps.tiles(rows, 8) > _MOST_ROWS


def _cost(steps: _Steps) -> tuple[int, int]:
  """Barriers of the cluster, barriers of the block."""
  found = [s.cluster for s in steps if isinstance(s, ThreadBarrier)]
  return sum(found), len(found) - sum(found)


def _in_order(steps: _Steps, order: Order) -> _Steps:
  found: list[ThreadStep] = []
  for number, phase in enumerate(order.phases):
    if number:
      behind = (steps[i].index for later in order.phases[number:] for i in later)
      found.append(ThreadBarrier(next(behind, -1), cluster=order.clusters[number - 1]))
    found += [steps[i] for i in phase]
  return tuple(found)


def most_held(nodes: Sequence[OrderedStep], sizes: Mapping[int, int], kept: frozenset[int]) -> int:
  """Registers of what a run makes, at its worst place; ``kept``: what others use as well."""
  last = {i: n for n, x in enumerate(nodes) for i in x.uses | x.makes}
  held: set[int] = set()
  most = 0
  for n, x in enumerate(nodes):
    held |= x.makes
    most = max(most, sum(sizes.get(i, 0) for i in held))
    held = {i for i in held if last[i] > n or i in kept}
  return most


def node(lowering: Lowered, step: ThreadStep, behind: Unordered) -> OrderedStep:
  """What a step behind these does, for the order."""
  ops, index = lowering.ops, step.index
  makes, args = {index}, ops[index].args if 0 <= index < len(ops) else ()
  match step:
    case do.ThreadRun():
      makes, args = set(step.ops), tuple(a for i in step.ops for a in ops[i].args)
    case do.Contract():
      makes = {step.into}
    case do.Update():
      makes |= {i for i, op in enumerate(ops) if kind_of(op.op) is Kind.PREVIOUS and op.args == (index,)}
    case do.Publish():
      makes, args = set(), args if ops[index].op in CLUSTER else (index,)
    case do.Spill():
      makes, args = set(), (index,)
    case do.Pack():
      args = (index,)
    case do.Store():
      # Stores stay in their order.
      makes, args = {-1}, (lowering.kernel.saves[index].arg,)
    case do.Copy():
      makes, args = set(), ()
    case do.Read() | do.Fetch() | do.Meet() | do.Gather() | do.GatherRanks():
      args = ()

  def is_there(value: int) -> bool:
    form = lowering.forms.get(value)
    return form is None or not lowering.in_place(value, form)

  return OrderedStep(
    frozenset(makes), made_of(ops, args, is_there), frozenset(step.reads), frozenset(step.writes),
    isinstance(step, do.GatherRanks), behind.clashes(step),
  )  # fmt: skip
