"""Tensors in device memory: element types, strides, index arithmetic, one-element access."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from math import gcd, prod

from mirage_onnx.errors import RejectionError
from mirage_onnx.ir import DType, Kernel, KTensor, UGraph, Window
from mirage_onnx.lower.sizes import Count, is_runtime, product, scaled

#: The tags of device/vector.cuh and device/packed.cuh.
TAGS = {
  DType.F16: "F16", DType.BF16: "BF16", DType.F32: "F32",
  DType.BOOL: "Bool", DType.I32: "I32", DType.I64: "I64", DType.Q2: "Q2", DType.Q4: "Q4",
  DType.Q8: "Q8", DType.S4: "S4", DType.S8: "S8",
}  # fmt: skip
_STORAGE = {
  DType.F16: "unsigned short", DType.BF16: "unsigned short", DType.F32: "float",
  DType.BOOL: "unsigned char", DType.I32: "int", DType.I64: "long long",
  DType.Q2: "unsigned char", DType.Q4: "unsigned char", DType.Q8: "unsigned char",
  DType.S4: "unsigned char", DType.S8: "unsigned char",
}  # fmt: skip
#: Index arithmetic is in int.
_MOST_ELEMENTS = 2**31 - 2**16


def identifier(name: str) -> str:
  """A name from a model as the tail of a C identifier; always used behind a prefix."""
  clean = re.sub(r"\W", "_", name, flags=re.ASCII)
  return clean + "_" if keyword.iskeyword(clean) else clean


def axis_variable(axis: str) -> str:
  """The variable that holds an index into an axis."""
  return axis if re.fullmatch(r"a\d+", axis) else f"x_{identifier(axis)}"


def count(extents: Mapping[str, int], axis: str) -> Count:
  """How many elements an axis has."""
  return f"n_{axis_variable(axis)}" if is_runtime(extents, axis) else extents[axis]


def tag(dtype: DType) -> str:
  """The C++ tag of an element type.

  Raises:
      RejectionError: EMIT_UNSUPPORTED, a type that kernels do not hold.
  """
  if dtype not in TAGS:
    raise RejectionError("EMIT_UNSUPPORTED", f"kernels do not hold elements of type {dtype}")
  return TAGS[dtype]


def rounded(expression: str, dtype: DType) -> str:
  """The fp32 expression rounded to ``dtype``."""
  if dtype is DType.F32 or not dtype.is_float:
    return expression
  return f"round_to<{tag(dtype)}>({expression})"


@dataclass(frozen=True, slots=True)
class Picked:
  """A dimension of ``full`` rows, ``stride`` elements apart; tensor ``by`` names those that ``axes`` hold."""

  by: str
  axes: tuple[str, ...]
  full: int
  stride: Count

  def named_at(self, place: str) -> str:
    """The row that is named at ``place``, an expression."""
    return f"picked_row(g_{identifier(self.by)}, {place}, {self.full})"

  def held_at(self, place: str) -> str:
    """The variable of ``Grid.declare_rows`` that holds this row, "" if there is none."""
    if (place == "0" and not self.axes) or place in {f"first_{axis_variable(a)}" for a in self.axes}:
      return f"row_{identifier(self.by)}_{self.full}" + (f"_{place}" if self.axes else "")
    return ""


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
  ) -> TensorView:
    """The view of a tensor with these extents; ``packed``: who asks knows weights of few bits.

    ``multiples``: of axes that only a launch counts, numbers that are taken to divide the count.

    Raises:
        RejectionError: EMIT_UNSUPPORTED, its type or its size; DYNAMIC_DIM, only a run
            counts an axis of which it has a part.
    """
    tag(tensor.dtype)
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
  def pointer(self) -> str:
    return f"g_{identifier(self.tensor.name)}"

  @property
  def tag(self) -> str:
    return tag(self.tensor.dtype)

  @property
  def storage(self) -> str:
    return _STORAGE[self.tensor.dtype]

  @property
  def coherent(self) -> bool:
    """A kernel may write it while this one waits (or, a temporary, before it)."""
    return self.tensor.role != "weight"

  @property
  def path(self) -> str:
    return "Path::kCoherent" if self.coherent else "Path::kConst"

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

  def offset(self, index: Mapping[str, str]) -> str:
    """The element offset at ``index`` (an expression per axis), "0" terms left out."""
    terms = []
    for axis, counted, stride in zip(self.tensor.axes, self.counts, self.strides, strict=True):
      at = index[axis]
      if at != "0" and not self.is_picked(axis):
        # Only what is counted at run time may lead beyond 2^31 elements.
        wide = stride != 1 and isinstance(counted, str)
        cast = wide or isinstance(stride, str)
        plain = cast or stride == 1 or re.fullmatch(r"\w+|at_most\([^()]*\)", at)
        terms.append(scaled(at if plain else f"({at})", stride, wide=wide))
    terms += [self._row(p, index) for p in self.picked]
    numbers = sum(n * step for n, step in self.starts if isinstance(step, int))
    terms += [str(numbers)] if numbers else []
    terms += [scaled(str(n), step) for n, step in self.starts if isinstance(step, str)]
    return " + ".join(terms) or "0"

  def _row(self, picked: Picked, index: Mapping[str, str]) -> str:
    """The offset of the row that a run picks at ``index``."""
    counts = dict(zip(self.tensor.axes, self.counts, strict=True))
    within: list[Count] = []
    place = []
    for a in reversed(picked.axes):
      if (at := index[a]) != "0":
        step = product(within)
        place.append(scaled(at if step == 1 or re.fullmatch(r"\w+", at) else f"({at})", step))
      within = [counts[a], *within]
    at = " + ".join(place) or "0"
    return scaled(picked.held_at(at) or picked.named_at(at), picked.stride, wide=True)

  def address(self, index: Mapping[str, str]) -> str:
    """Of an element; of packed ones of the byte that it is in."""
    offset = self.offset(index)
    if self.tensor.dtype.bits < 8 and offset != "0":
      return f"{self.pointer} + ({offset}) / {8 // self.tensor.dtype.bits}"
    return self.pointer if offset == "0" else f"{self.pointer} + {offset}"

  def load(self, index: Mapping[str, str]) -> str:
    return f"load<{self.tag}, {self.path}>({self.address(index)})"

  def load_bits(self, index: Mapping[str, str]) -> str:
    """As it lies in memory; ``widened`` makes it fp32."""
    return f"load_bits<{self.tag}, {self.path}>({self.address(index)})"

  def widened(self, bits: str) -> str:
    return bits if self.tensor.dtype is DType.F32 else f"{self.tag}::widen({bits})"

  def store(self, index: Mapping[str, str], value: str) -> str:
    return f"store<{self.tag}>({self.address(index)}, {value});"

  def parameter(self, written: bool, shared: bool = False) -> str:
    """``shared``: another one may be the same memory."""
    alone = "" if shared else "__restrict__ "
    return f"{'' if written else 'const '}{self.storage}* {alone}{self.pointer}"


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


def parameters(
  graph: UGraph, kernel: Kernel, extents: Mapping[str, int], shared: Set[str] = frozenset()
) -> tuple[tuple[str, ...], list[str]]:
  """The tensors that a kernel is given, in order, and all its parameters.

  After the tensors come the sizes that only a launch knows (``runtime_axes``). ``shared``: tensors
  that may be in one place.
  """
  written = [s.tensor for s in kernel.saves]
  args = graph.args_of(kernel)
  views = [TensorView.of(graph.tensor(a), extents, packed=True) for a in args]
  given = [v.parameter(v.tensor.name in written, v.tensor.name in shared) for v in views]
  sizes = runtime_axes(graph, kernel, extents)
  return args, given + [f"const int {count(extents, a)}" for a in sizes]
