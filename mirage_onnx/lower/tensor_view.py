"""Tensors in device memory: how far elements lie apart, where they begin, what is a vector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import gcd, prod
from typing import Self

from mirage_onnx.errors import RejectionError
from mirage_onnx.ir import DType, Kernel, KTensor, UGraph, Window
from mirage_onnx.lower.sizes import Count, count, is_runtime, product

#: Element types that kernels hold.
HELD = frozenset({
  DType.F16, DType.BF16, DType.F32, DType.BOOL, DType.I32, DType.I64,
  DType.Q2, DType.Q4, DType.Q8, DType.S4, DType.S8, DType.I8, DType.U8,
  DType.P4M3, DType.P5M2,
})  # fmt: skip
#: Index arithmetic is in int.
_MOST_ELEMENTS = 2**31 - 2**16


def check_held(dtype: DType) -> None:
  """Refuses a type that kernels do not hold.

  Raises:
      RejectionError: EMIT_UNSUPPORTED.
  """
  if dtype not in HELD:
    raise RejectionError("EMIT_UNSUPPORTED", f"kernels do not hold elements of type {dtype}")


@dataclass(frozen=True, slots=True)
class Picked:
  """A dimension of ``full`` rows, ``stride`` elements apart; tensor ``by`` names those that ``axes`` hold."""

  by: str
  axes: tuple[str, ...]
  full: int
  stride: Count


@dataclass(frozen=True, slots=True)
class TensorView:
  """A tensor and how kernels reach it; ``counts`` and ``strides``: of its axes.

  ``starts``: the sum of these products is the element that all axes begin at. ``aligned``: a
  number that divides the offset of every element with which the axis of stride 1 begins. Along
  an axis of which several neighbours are one element, strides count those of memory.
  ``picked``: dimensions whose axes are no distance in memory (their strides are 0): a run says
  where their elements are.
  """

  tensor: KTensor
  counts: tuple[Count, ...]
  strides: tuple[Count, ...]
  starts: tuple[tuple[int, Count], ...]
  aligned: int
  picked: tuple[Picked, ...] = ()

  @classmethod
  def of(
    cls,
    tensor: KTensor,
    extents: Mapping[str, int],
    multiples: Mapping[str, int] | None = None,
    *,
    packed: bool = False,
  ) -> Self:
    """The view of a tensor with these extents; ``packed``: who asks knows weights of few bits.

    ``multiples``: of axes that only a launch counts, numbers that are taken to divide the count.

    Raises:
        RejectionError: EMIT_UNSUPPORTED, its type or its size; DYNAMIC_DIM, only a run
            counts an axis of which it has a part.
    """
    check_held(tensor.dtype)
    if not packed and tensor.few_bits:
      reason = f"{tensor.name}, weights of few bits or their scales, is an operand of a streaming loop only"
      raise RejectionError("EMIT_UNSUPPORTED", reason)
    counts = {a: count(extents, a) for a in tensor.axes}
    known = {str(counts[a]): n for a, n in (multiples or {}).items()}
    inside: list[Count] = []  # the dimensions inside the one at hand
    strides: dict[str, Count] = {}
    starts, steps, picked = [], [0], []
    for w in reversed(tensor.windows or (Window(tensor.axes),)):
      if w.picks:
        assert w.full is not None
        assert w is tensor.windows[0]
        picked.append(Picked(w.picks, w.axes, w.full, product(inside)))
        steps.append(_number_in(inside, known))
        strides |= dict.fromkeys(w.axes, 0)
        break  # rows are 64 bits apart: a table may have any size
      within = inside
      for a in reversed(w.axes):
        strides[a] = product(within)
        steps.append(_number_in(within, known) if strides[a] != 1 else 0)
        within = [counts[a] if w.repeat == 1 else extents[a] // w.repeat, *within]
      if w.full is None:
        inside = within
        continue
      if any(isinstance(counts[a], str) for a in w.axes):
        why = f"{tensor.name} is a part of a dimension that is counted at run time"
        raise RejectionError("DYNAMIC_DIM", why)
      if w.start:
        starts.append((w.start, product(inside)))
        steps.append(w.start * _number_in(inside, known))
      inside = [w.full, *inside]
    if _number_in(inside, known) > _MOST_ELEMENTS:
      raise RejectionError("EMIT_UNSUPPORTED", f"{tensor.name} has 2^31 elements or more")
    return cls(
      tensor, tuple(counts.values()), tuple(strides[a] for a in tensor.axes),
      tuple(starts[::-1]), gcd(*steps), tuple(picked),
    )  # fmt: skip

  @property
  def coherent(self) -> bool:
    """A kernel may write it while this one waits (or, a temporary, before it)."""
    return self.tensor.role != "weight"

  def stride(self, axis: str) -> Count:
    """Elements from one of ``axis`` to the next; 0 if the tensor does not have it.

    Raises:
        RejectionError: LAYOUT, a run says where they are.
    """
    if self.is_picked(axis):
      raise RejectionError("LAYOUT", f"no distance leads from one {axis} of {self.tensor.name} to the next")
    axes = self.tensor.axes
    return self.strides[axes.index(axis)] if axis in axes else 0

  def is_picked(self, axis: str) -> bool:
    return any(axis in p.axes for p in self.picked)

  def together(self, axis: str, width: int) -> bool:
    """Whether ``width`` neighbours along ``axis``, from a multiple of it on, are one vector.

    A vector is aligned to its size, 16 bytes at most.
    """
    width = min(width, 128 // self.tensor.dtype.bits)
    return not self.is_picked(axis) and self.stride(axis) == 1 and self.aligned % width == 0

  def rows_begin_with(self, axis: str, chunk: int) -> bool:
    """Whether every row along ``axis`` begins with a chunk of so many elements.

    Of rows that only a run counts ``aligned`` says it. ``together`` does not see a second axis of stride 1,
    of which the last has one element.
    """
    others = (self.stride(a) for a in self.tensor.axes if a != axis and not self.is_picked(a))
    return all(not isinstance(s, int) or s % chunk == 0 for s in others)


def _number_in(counts: Sequence[Count], known: Mapping[str, int]) -> int:
  """The product of what is known of these: numbers, and what divides others."""
  return prod(c if isinstance(c, int) else known.get(c, 1) for c in counts)


def kernel_axes(graph: UGraph, kernel: Kernel) -> frozenset[str]:
  """The axes of a kernel's tensors, and those of which it needs the number."""
  counted = (a for op in kernel.ops if op.op == "extent" for a in op.reduced)
  return frozenset((*counted, *(a for t in graph.tensors_of(kernel) for a in t.axes)))


def runtime_axes(graph: UGraph, kernel: Kernel, extents: Mapping[str, int]) -> tuple[str, ...]:
  """The axes of a kernel whose sizes only a launch knows."""
  axes = kernel_axes(graph, kernel)
  return tuple(sorted(a for a in axes if is_runtime(extents, a)))


def touched_bytes(graph: UGraph, kernel: Kernel, extents: Mapping[str, int]) -> int:
  """Of the tensors of a kernel, each once; those of sizes that only a launch knows are left out."""
  unknown = {*runtime_axes(graph, kernel, extents)}
  return sum(
    t.dtype.bytes_of(prod(extents[a] for a in t.axes)) // t.repeat
    for t in graph.tensors_of(kernel) if not unknown & {*t.axes}
  )  # fmt: skip
