"""What a plan has that is not of its µGraph, and the plan that the two of them make.

The tensors of the node, the sizes that must agree, which tensor of the µGraph lies where, and how a
run finds the extents of axes. A bundle records it beside the µGraph, so ``verify`` can make every
line of a plan again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mirage_onnx.codegen.source import KernelSource
from mirage_onnx.custom_op.arguments import InputPtr, MapOf, OutputPtr, Pointer, WorkspacePtr
from mirage_onnx.custom_op.expr import Expr, const
from mirage_onnx.custom_op.plan import Launch, Plan, Variant, parse_plan
from mirage_onnx.custom_op.runtime_sizes import RuntimeSizes, product, total
from mirage_onnx.ir import KTensor, UGraph


@dataclass(frozen=True, slots=True)
class Interface:
  """``head``: the plan without workspace and launches. ``sizes``: of axes that only a run knows.

  ``inputs`` and ``outputs``: by tensor of the µGraph, the number of that of the plan which it is, or
  is a part of.
  """

  head: Plan
  inputs: Mapping[str, int]
  outputs: Mapping[str, int]
  sizes: Mapping[str, Expr]

  def to_record(self) -> dict[str, object]:
    """As JSON has it; ``from_record`` reads it."""
    return {
      "head": self.head.to_text(),
      "inputs": dict(self.inputs),
      "outputs": dict(self.outputs),
      "sizes": {axis: size.text for axis, size in self.sizes.items()},
    }

  @classmethod
  def from_record(cls, record: Mapping[str, Any]) -> "Interface":
    """Of a record that anyone may have written.

    Raises:
        MirageError: PLAN_INVALID; and what reading a wrong type or a missing key raises.
    """
    head = parse_plan(record["head"])
    sizes = {str(axis): Expr(str(size)) for axis, size in record["sizes"].items()}
    for size in sizes.values():
      size.check([len(spec.dims) for spec in head.inputs])
    inputs, outputs = ({str(t): int(k) for t, k in record[side].items()} for side in ("inputs", "outputs"))
    return cls(head, inputs, outputs, sizes)


def make_plan(
  interface: Interface,
  graph: UGraph,
  extents: Mapping[str, int],
  sources: Sequence[KernelSource],
  cubins: Sequence[int],
) -> Plan:
  """The plan that launches ``sources`` (one per kernel of ``graph``, image ids ``cubins``).

  ``extents``: of every axis, part axes with them (``ugraph_extents``). Without ``sources`` the plan has
  no launches.
  """
  known = RuntimeSizes(extents, interface.sizes)
  offsets: dict[str, Expr] = {}
  size = const(0)
  for t in graph.tensors:
    if t.role == "temp":
      offsets[t.name] = size
      size = total(size, known.aligned_bytes(t))

  def pointer(t: KTensor) -> Pointer:
    touched = known.bytes_of(t)
    if t.name in offsets:
      return WorkspacePtr(offsets[t.name], touched)
    if t.name in interface.inputs:
      return InputPtr(interface.inputs[t.name], touched)
    return OutputPtr(interface.outputs[t.name], touched)

  pointers = {t.name: pointer(t) for t in graph.tensors}
  results = const(0)
  for output in interface.head.outputs:
    results = total(results, product(output.dims))
  launches = tuple(
    Launch(
      cubin=cubin,
      kernel=s.name,
      grid=(known.blocks(s), const(s.grid[1]), const(s.grid[2])),
      block=s.block,
      args=(
        *(pointers[a] for a in s.args),
        *(known.argument(a, graph, k, results) for a in s.sizes),
        *(MapOf(pointers[m.tensor], *m.words) for m in s.maps),
      ),
      cluster=s.cluster,
      smem_bytes=s.smem_bytes,
      pdl=s.pdl,
    )
    for k, (s, cubin) in zip(graph.kernels, zip(sources, cubins, strict=True), strict=False)
  )
  return replace(interface.head, variants=(Variant(launches),), workspace=size if offsets else None)
