"""What a copy has already: zeros behind the end of a cache.

Behind the end that a run says (``KTensor.limit``) nothing matters, whatever is there, so a copy to
shared memory fills it with zeros. A program that chooses zeros there itself

    select(place < end, v, 0)

chooses between what is the same. So the chosen is taken as it was copied, and contractions read it by
matrices; element by element, a lane had 128 registers of values for one query beside a cache.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace

from mirage_onnx.ir.ugraph import Kernel, KTensor
from mirage_onnx.lower.dataflow import cast_load
from mirage_onnx.lower.unseen import MORE, compared, zeros_behind


def with_zeros_behind(kernel: Kernel, tensors: Mapping[str, KTensor], cut: Collection[str]) -> Kernel:
  """The kernel without such choices; numbers of operations stay, some are needed no more.

  ``cut``: axes of which a block has one element: there the end is one number, for which copies look.
  """
  same = dict[int, int]()  # a value -> an earlier one that is the same
  for index, op in enumerate(kernel.ops):
    args = tuple(same.get(a, a) for a in op.args)
    if op.op == "select" and _is_zero(kernel, args[2]) and _ends(kernel, tensors, cut, args[0], args[1]):
      same[index] = args[1]
    elif op.op == "cast" and op.dtype.is_half:
      source = cast_load(kernel.ops, args[0])
      if source is not None and kernel.ops[source].dtype is op.dtype:
        same[index] = source
  if not any(kernel.ops[i].op == "select" for i in same):
    return kernel
  ops = tuple(replace(op, args=tuple(same.get(a, a) for a in op.args)) for op in kernel.ops)
  saves = tuple(replace(s, arg=same.get(s.arg, s.arg)) for s in kernel.saves)
  return replace(kernel, ops=ops, saves=saves)


def _is_zero(kernel: Kernel, index: int) -> bool:
  op = kernel.ops[index]
  return op.op == "const" and op.value == 0


def _ends(
  kernel: Kernel, tensors: Mapping[str, KTensor], cut: Collection[str], condition: int, value: int
) -> bool:
  """Whether a value is a copy with zeros where the condition is false."""
  load = cast_load(kernel.ops, value)
  limit = tensors[kernel.ops[load].tensor].limit if load is not None else None
  if load is None or limit is None:
    return False
  (axis, end, more), op = limit, kernel.ops[condition]
  copied = zeros_behind(kernel.ops[load], tensors[kernel.ops[load].tensor]) and {*tensors[end].axes} <= {*cut}
  places = {c[0] for o in kernel.ops if (c := compared(kernel, o))[1:] == (end,)}
  by_end = compared(kernel, op)[1:] == (end,) and MORE[op.op] == more
  return copied and by_end and len(places) == 1 and {*op.axes} == {axis, *tensors[end].axes}
