"""What the outputs of a streaming kernel need of memory after its loop, loaded before it."""

from mirage_onnx.codegen.scalar import Scalar
from mirage_onnx.codegen.source import Writer
from mirage_onnx.codegen.space import element_of
from mirage_onnx.lower.sizes import axis_variable
from mirage_onnx.lower.stream_behind import StreamBehind


class EarlyLoads:
  """Writes loads of elements and of vectors, and knows what is in which array then."""

  def __init__(self, behind: StreamBehind, scalar: Scalar, writer: Writer) -> None:
    self.behind, self.scalar, self.writer = behind, scalar, writer
    #: Of a walk over outputs: the loads that are elements, and those that are vectors.
    self.loaded: dict[int, tuple[dict[int, str], dict[int, str]]] = {}

  def emit(self, *, ahead: bool) -> None:
    """Operands of the output elements, so that their latency passes during the loop.

    They stay as they lie in memory: a conversion here would wait for them. ``ahead``: the kernels
    before may still write what is made in the graph.
    """
    for number, (loads, vectors) in self.behind.early(self.behind.graph.saved if ahead else set()).items():
      space, _ = self.behind.spaces[number]
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
      with self.writer.loop("q", space.per_thread) as q, element_of(space, self.writer, q) as at:
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
