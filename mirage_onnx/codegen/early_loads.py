"""What the outputs of a streaming kernel need of memory after its loop, loaded before it."""

from collections.abc import Sequence

from mirage_onnx.codegen.scalar import Scalar
from mirage_onnx.codegen.source import Writer
from mirage_onnx.ir import UGraph
from mirage_onnx.lower.sizes import axis_variable
from mirage_onnx.lower.stream_behind import MOST_UNROLLED, Placement

#: Registers of a thread that vectors of a contraction behind the loop may take during it.
_MOST_VECTOR_REGISTERS = 32


class EarlyLoads:
  """Writes loads of elements and of vectors, and knows what is in which array then."""

  def __init__(self, graph: UGraph, placement: Placement, scalar: Scalar, writer: Writer) -> None:
    self.graph, self.placement, self.scalar, self.writer = graph, placement, scalar, writer
    self.ops = placement.ops
    #: Of a walk over outputs: the loads that are elements, and those that are vectors.
    self.loaded: dict[int, tuple[dict[int, str], dict[int, str]]] = {}

  def emit(self, *, ahead: bool) -> None:
    """Operands of the output elements, so that their latency passes during the loop.

    They stay as they lie in memory: a conversion here would wait for them. ``ahead``: the kernels
    before may still write what is made in the graph.
    """
    made = self.graph.saved if ahead else frozenset()
    for number, (space, saves) in enumerate(self.placement.spaces):
      if space.per_thread > MOST_UNROLLED:
        continue
      roots = [s.arg for s in saves]
      found = self.scalar.inline("load", roots, self.placement.staged)
      loads = [i for i in found if self.ops[i].tensor not in made]
      vectors = self._vectors(roots, space.per_thread, made)
      names = {i: f"e{i}_{number}" for i in loads}
      for index, name in names.items():
        view = self.scalar.view(index)
        dims = f"[{space.per_thread}]"
        self.writer.line(f"{view.storage} {name}{dims};  // {view.tensor.name}")
      for load, (_, extent) in vectors.items():
        view = self.scalar.view(load)
        dims = f"[{space.per_thread}][{extent // 8}]"
        self.writer.line(f"Eight<{view.tag}> e{load}_{number}{dims};  // {view.tensor.name}")
      if not names and not vectors:
        continue
      with self.writer.loop("q", space.per_thread) as q, space.element(self.writer, q) as at:
        for index, name in names.items():
          view = self.scalar.view(index)
          bits = view.load_bits(self.scalar.index(view.tensor.axes, at))
          self.writer.line(f"{name}[{q}] = {bits};", index)
        for load, (axis, extent) in vectors.items():
          step = f"{axis_variable(axis)}_8"
          self.writer.line("#pragma unroll")
          with self.writer.block(f"for (int {step} = 0; {step} < {extent}; {step} += 8)"):
            value = self.scalar.eight(load, axis, at)
            self.writer.line(f"e{load}_{number}[{q}][{step} / 8] = {value};", load)
      self.loaded[number] = names, {i: f"e{i}_{number}" for i in vectors}

  def _vectors(
    self, roots: Sequence[int], per_thread: int, made: frozenset[str]
  ) -> dict[int, tuple[str, int]]:
    """Loads that contractions behind the loop take, with what they walk, if registers hold them."""
    found: dict[int, tuple[str, int]] = {}
    room = _MOST_VECTOR_REGISTERS
    for index in self.scalar.inline("matmul", roots, self.placement.staged):
      axis, extent, loads = self.scalar.vectors(index)
      for load in loads:
        size = per_thread * extent * self.ops[load].dtype.size_bytes // 4
        if load not in found and size <= room and self.ops[load].tensor not in made:
          found[load] = axis, extent
          room -= size
    return found
