"""Tensors in device memory as text: element types, index arithmetic, one-element access."""

import re
from collections.abc import Mapping, Set
from dataclasses import dataclass

from mirage_onnx.codegen.index_text import scaled
from mirage_onnx.ir import DType, Kernel, UGraph
from mirage_onnx.lower.sizes import Count, axis_variable, count, identifier, product
from mirage_onnx.lower.tensor_view import Picked, TensorView, check_held, runtime_axes

#: The tags of device/vector.cuh and device/packed.cuh, and the C++ types in memory.
TAGS = {
  DType.F16: "F16", DType.BF16: "BF16", DType.F32: "F32",
  DType.BOOL: "Bool", DType.I8: "I8", DType.U8: "U8", DType.I32: "I32", DType.I64: "I64",
  DType.Q2: "Q2", DType.Q4: "Q4", DType.Q8: "Q8", DType.S4: "S4", DType.S8: "S8",
  DType.P4M3: "P4M3", DType.P5M2: "P5M2",
}  # fmt: skip
_STORAGE = dict.fromkeys(TAGS, "unsigned char") | {
  DType.F16: "unsigned short", DType.BF16: "unsigned short", DType.F32: "float",
  DType.I32: "int", DType.I64: "long long",
}  # fmt: skip


def tag(dtype: DType) -> str:
  """The C++ tag of an element type.

  Raises:
      RejectionError: EMIT_UNSUPPORTED, a type that kernels do not hold.
  """
  check_held(dtype)
  return TAGS[dtype]


def rounded(expression: str, dtype: DType) -> str:
  """The fp32 expression rounded to ``dtype``."""
  if dtype is DType.F32 or not dtype.is_float:
    return expression
  return f"round_to<{tag(dtype)}>({expression})"


def storage(dtype: DType) -> str:
  """The C++ type of an element in memory; of packed ones that of their bytes."""
  return _STORAGE[dtype]


def named_at(picked: Picked, place: str) -> str:
  """The row that is named at ``place``, an expression."""
  return f"picked_row(g_{identifier(picked.by)}, {place}, {picked.full})"


def held_at(picked: Picked, place: str) -> str:
  """The variable of ``declare_rows`` that holds this row, "" if there is none."""
  if (place == "0" and not picked.axes) or place in {f"first_{axis_variable(a)}" for a in picked.axes}:
    return f"row_{identifier(picked.by)}_{picked.full}" + (f"_{place}" if picked.axes else "")
  return ""


@dataclass(frozen=True, slots=True)
class TensorText(TensorView):
  """A tensor and how kernels reach it, as expressions and statements."""

  @property
  def pointer(self) -> str:
    return f"g_{identifier(self.tensor.name)}"

  @property
  def tag(self) -> str:
    return tag(self.tensor.dtype)

  @property
  def storage(self) -> str:
    return storage(self.tensor.dtype)

  @property
  def path(self) -> str:
    return "Path::kCoherent" if self.coherent else "Path::kConst"

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
    return scaled(held_at(picked, at) or named_at(picked, at), picked.stride, wide=True)

  def address(self, index: Mapping[str, str]) -> str:
    """Of an element; of packed ones of the byte that it is in."""
    offset = self.offset(index)
    if self.tensor.dtype.bits < 8 and offset != "0":
      return f"{self.pointer} + ({offset}) / {8 // self.tensor.dtype.bits}"
    return self.pointer if offset == "0" else f"{self.pointer} + {offset}"

  def load(self, index: Mapping[str, str]) -> str:
    if self.tensor.places:
      return f"static_cast<float>({index[self.tensor.axes[0]]})"
    return f"load<{self.tag}, {self.path}>({self.address(index)})"

  def load_bits(self, index: Mapping[str, str]) -> str:
    """As it lies in memory; ``widened`` makes it fp32."""
    if self.tensor.places:
      return index[self.tensor.axes[0]]
    return f"load_bits<{self.tag}, {self.path}>({self.address(index)})"

  def widened(self, bits: str) -> str:
    return bits if self.tensor.dtype is DType.F32 else f"{self.tag}::widen({bits})"

  def store(self, index: Mapping[str, str], value: str) -> str:
    return f"store<{self.tag}>({self.address(index)}, {value});"

  def parameter(self, written: bool, shared: bool = False) -> str:
    """``shared``: another one may be the same memory."""
    alone = "" if shared else "__restrict__ "
    return f"{'' if written else 'const '}{self.storage}* {alone}{self.pointer}"


def parameters(
  graph: UGraph, kernel: Kernel, extents: Mapping[str, int], shared: Set[str] = frozenset()
) -> tuple[tuple[str, ...], list[str]]:
  """The tensors that a kernel is given, in order, and all its parameters.

  After the tensors come the sizes that only a launch knows (``runtime_axes``). ``shared``: tensors
  that may be in one place.
  """
  written = [s.tensor for s in kernel.saves]
  args = graph.args_of(kernel)
  views = [TensorText.of(graph.tensor(a), extents, packed=True) for a in args]
  given = [v.parameter(v.tensor.name in written, v.tensor.name in shared) for v in views]
  sizes = runtime_axes(graph, kernel, extents)
  return args, given + [f"const int {count(extents, a)}" for a in sizes]
