"""What is loaded behind a loop of products: brought to L2 while they run, so that it is soon there."""

from collections.abc import Iterator

from mirage_onnx.codegen.index_text import total
from mirage_onnx.codegen.loads import TensorText
from mirage_onnx.codegen.source import conditional
from mirage_onnx.codegen.tiled.quads_text import in_quads
from mirage_onnx.codegen.tiled.spot import Spot
from mirage_onnx.codegen.tiled.values import ValueWriter
from mirage_onnx.lower.steps import Fetch, Held
from mirage_onnx.lower.thread_graph import ThreadGraph

#: Elements of 16 bits that a prefetch brings.
_LINE = 64


def late_loads(w: ValueWriter, threads: ThreadGraph) -> Iterator[tuple[Held, TensorText]]:
  """Loads of a tile behind the loop, in rows of memory: what they read is there before the kernel."""
  for step in threads.steps.after:
    if not isinstance(step, Fetch) or step.to in w.issued:
      continue
    view, own = w.view(w.ops[step.index].tensor), w.own(step.index)
    if in_quads(w, step.to.form, view, own) and len(step.to.form.g) == 1:
      yield step.to, view


def prefetch(w: ValueWriter, held: Held, view: TensorText, threads: int) -> None:
  """A tile to L2, by the ``threads`` of a team."""
  own, (rows,), (columns,) = w.own(held.index), held.form.g, held.form.t
  each = -(-columns.length // _LINE)
  lines = rows.length * each
  w.writer.comment(f"%{held.index}: {view.tensor.name} to L2.")
  w.writer.line("#pragma unroll")
  with w.writer.block(f"for (int n = 0; n < {-(-lines // threads)}; ++n)"):
    w.writer.line(f"const int line = n * {threads} + ptx::thread() % {threads};")
    w.writer.line(f"const int r = line / {each};" if each > 1 else "const int r = line;")
    w.writer.line(f"const int c = line % {each} * {_LINE};" if each > 1 else "const int c = 0;")
    spot = Spot(w.writer, w.pieces, w.lowering.warps, held.form, {"i": "0", "j": "0", "e": "0"})
    spot.known |= {rows: "r", columns: "c"}
    index = {a: total(w.pieces.first(own[a]), spot.known.get(own[a], "0")) for a in view.tensor.axes}
    only = [] if lines % threads == 0 else [f"line < {lines}"]
    only += [c for c in spot.exists([rows, columns]) if c not in only]
    w.writer.line(conditional(only, f"ptx::prefetch_l2({view.address(index)});"), held.index)
