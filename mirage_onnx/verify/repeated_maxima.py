"""A µGraph without maxima that repeat themselves, which the maximum of ``field`` does not see.

    max(x, x), min(x, x)       = x
    acc_max(run_max(x))        = acc_max(x)      the largest of the running maxima is the last one
    acc_scaled(run_max(x), 0)  = acc_max(x)      the last of them, where every rank has one
    red_max(x)                 = x               for an x that is equal in all ranks

As everywhere, a running maximum starts below every number that the inputs can have.
"""

from dataclasses import replace

from mirage_onnx.ir.block_ops import CLUSTER
from mirage_onnx.ir.ugraph import BlockOp, Kernel, Phase, UGraph


def without_repeats(graph: UGraph) -> UGraph:
  """An equal µGraph without such maxima; ``graph`` itself if it has none."""
  kernels = tuple(map(_kernel, graph.kernels))
  return graph if kernels == graph.kernels else replace(graph, kernels=kernels)


def _kernel(kernel: Kernel) -> Kernel:
  """Values keep their numbers: a maximum that repeats is no longer read, or reads another value.

  A value that nobody reads changes nothing.
  """
  instead: list[int] = []
  ops: list[BlockOp] = []
  uniform: list[bool] = []
  for index, given in enumerate(kernel.ops):
    op = replace(given, args=tuple(instead[a] for a in given.args))
    target = index
    of_itself = op.op in ("max", "min") and len(set(op.args)) == 1
    if of_itself or (op.op == "red_max" and uniform[op.args[0]]):
      target = op.args[0]
    elif op.op == "acc_max" and ops[op.args[0]].op == "run_max":
      op = replace(op, args=ops[op.args[0]].args)
    elif kernel.cluster is None and _is_last(op, ops):
      op = replace(op, op="acc_max", args=ops[op.args[0]].args)
    instead.append(target)
    ops.append(op)
    uniform.append(_is_uniform(op, uniform))
  saves = tuple(replace(s, arg=instead[s.arg]) for s in kernel.saves)
  return replace(kernel, ops=tuple(ops), saves=saves)


def _is_last(op: BlockOp, ops: list[BlockOp]) -> bool:
  """Whether ``op`` is the last value of a running maximum: what was accumulated counts 0."""
  if op.op != "acc_scaled":
    return False
  x, factor = (ops[a] for a in op.args)
  return x.op == "run_max" and factor.op == "const" and factor.value == 0


def _is_uniform(op: BlockOp, uniform: list[bool]) -> bool:
  """Whether all ranks of the cluster have one value, whatever the cluster is.

  What the loop makes is not asked: ranks may differ in the number of their iterations.
  """
  if op.op in CLUSTER:
    return True
  if op.phase is Phase.LOOP or any(not uniform[a] for a in op.args):
    return False
  return op.cmap is None
