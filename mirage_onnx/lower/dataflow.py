"""Which values of a kernel are made of which, which are others in every iteration, and who takes them."""

from collections.abc import Callable, Iterable, Sequence

from mirage_onnx.ir.block_ops import RUNNING
from mirage_onnx.ir.ugraph import BlockOp, Kernel, Phase


def made_of(
  ops: Sequence[BlockOp], roots: Iterable[int], ends: Callable[[int], bool] = lambda _: False
) -> frozenset[int]:
  """The values that ``roots`` are made of, these included; of those that are ``ends`` no arguments."""
  found, todo = set[int](), [*roots]
  while todo:
    if (index := todo.pop()) not in found:
      found.add(index)
      todo += () if ends(index) else ops[index].args
  return frozenset(found)


def needed_values(kernel: Kernel) -> frozenset[int]:
  """The values that saves are computed from."""
  return made_of(kernel.ops, (s.arg for s in kernel.saves))


def varying(kernel: Kernel) -> list[bool]:
  """For each value, whether it is another one in every iteration."""
  found: list[bool] = []
  for op in kernel.ops:
    again = op.fmap is not None or op.op in RUNNING or any(found[a] for a in op.args)
    found.append(again and op.phase is Phase.LOOP)
  return found


def users_of(kernel: Kernel) -> list[list[int]]:
  """For each value, the operations that take it, in order; twice what takes it twice."""
  found: list[list[int]] = [[] for _ in kernel.ops]
  for index, op in enumerate(kernel.ops):
    for a in op.args:
      found[a].append(index)
  return found


def behind_casts(ops: Sequence[BlockOp], index: int) -> int:
  """The value of which this one is a cast, maybe of a cast."""
  while ops[index].op == "cast":
    (index,) = ops[index].args
  return index


def cast_load(ops: Sequence[BlockOp], index: int) -> int | None:
  """The load that a value is, behind casts that lose nothing; None if it is more."""
  while ops[index].op == "cast" and not ops[index].dtype.is_half:
    (index,) = ops[index].args
  return index if ops[index].op == "load" else None
