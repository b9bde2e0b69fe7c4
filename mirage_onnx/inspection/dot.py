"""A µGraph as a DOT drawing: a box per kernel, a node per value, its level as a colour."""

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum

from mirage_onnx.inspection.printable import printable
from mirage_onnx.ir.block_ops import CLUSTER, OPERATORS, Kind, of_kinds
from mirage_onnx.ir.ugraph import BlockOp, Kernel, KernelParams, Layout, Phase, UGraph


class Level(StrEnum):
  """The level of the GPU at which a value is made or lives."""

  KERNEL = "kernel: device memory"
  CLUSTER = "cluster: combined over ranks"
  BLOCK = "block: a tile, or combined over threads"
  THREAD = "thread: in registers"


COLOURS: Mapping[Level, str] = {
  Level.KERNEL: "lightsteelblue",
  Level.CLUSTER: "plum",
  Level.BLOCK: "khaki",
  Level.THREAD: "palegreen",
}
#: What takes other elements than its own of its arguments, or other iterations.
_BLOCK = {*OPERATORS} - of_kinds(Kind.CLUSTER, Kind.CONSTANT, Kind.POINTWISE)


def level(op: BlockOp) -> Level:
  """Where the value of ``op`` comes from."""
  if op.op in CLUSTER:
    return Level.CLUSTER
  return Level.BLOCK if op.op in _BLOCK or op.layout is Layout.SHARED else Level.THREAD


def to_dot(graph: UGraph, params: Sequence[KernelParams] = (), names: Mapping[str, str] | None = None) -> str:
  """The drawing, of a page at most; ``params``: numbers of the kernels, for their titles.

  ``names``: tensor of the µGraph -> what the model calls it.
  """
  lines = [
    "digraph ugraph {",
    '  graph [rankdir=TB, size="7.5,10.5", nodesep=0.15, ranksep=0.25, fontname="monospace", fontsize=10];',
    '  node [shape=box, style=filled, fontname="monospace", fontsize=9, height=0.2, margin="0.06,0.03"];',
    "  edge [arrowsize=0.6];",
  ]
  for t in graph.tensors:
    called = printable((names or {}).get(t.name, t.name))
    label = f"{called}\n{t.dtype}[{','.join(t.axes)}]\n{t.role}"
    lines.append(f"  {_node(t.name, label, Level.KERNEL)}")
  for i, kernel in enumerate(graph.kernels):
    lines += _kernel(kernel, params[i] if i < len(params) else None)
  lines += ["  subgraph cluster_levels {", '    label="levels";']
  lines += [f"    {_node(f'level {x.name}', str(x), x)}" for x in Level]
  return "\n".join([*lines, "  }", "}"]) + "\n"


def _kernel(kernel: Kernel, params: KernelParams | None) -> Iterator[str]:
  title = (
    f"kernel {kernel.name} grid={','.join(kernel.grid) or '-'} "
    f"cluster={kernel.cluster or '-'} loop={kernel.loop or '-'}"
  )
  if params is not None:
    title = f"{title}\n{params.to_text()}"
  yield f"  subgraph {_quoted(f'cluster_{kernel.name}')} {{"
  yield f"    label={_quoted(title)};"
  for phase in Phase:
    says = _PHASES[phase] if kernel.loop else "once"
    yield f"    subgraph {_quoted(f'cluster_{kernel.name}_{phase}')} {{"
    yield f"      style=dashed; label={_quoted(says)};"
    for index, op in enumerate(kernel.ops):
      if op.phase is phase:
        yield f"      {_node(f'{kernel.name}%{index}', _label(index, op), level(op))}"
    yield "    }"
  yield "  }"
  for index, op in enumerate(kernel.ops):
    target = _quoted(f"{kernel.name}%{index}")
    if op.tensor:
      yield f"  {_quoted(op.tensor)} -> {target};"
    for a in op.args:
      yield f"  {_quoted(f'{kernel.name}%{a}')} -> {target};"
  for save in kernel.saves:
    yield f"  {_quoted(f'{kernel.name}%{save.arg}')} -> {_quoted(save.tensor)};"


_PHASES = {Phase.LOOP: "in every iteration of the loop", Phase.POST: "once, after the loop"}


def _label(index: int, op: BlockOp) -> str:
  attribute = ",".join(op.reduced) if op.reduced else op.value
  head = op.op if attribute is None else f"{op.op}[{attribute}]"
  return f"%{index} {head}\n{op.dtype}[{','.join(op.axes)}] {op.layout}"


def _node(name: str, label: str, of: Level) -> str:
  return f"{_quoted(name)} [label={_quoted(label)}, fillcolor={COLOURS[of]}];"


def _quoted(text: str) -> str:
  escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
  return f'"{escaped}"'
