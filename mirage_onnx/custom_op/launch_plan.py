"""From a chosen candidate to its launch plan and to what the rewriter replaces.

Inputs of the plan are the tensors that the region's inputs are parts of, in canonical order, each
in the dim order that its kernels read (a weight stored along its contracted axis is transposed
once, by the rewriter).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from mirage_onnx.codegen.source import KernelSource
from mirage_onnx.custom_op.interface import Interface, make_plan
from mirage_onnx.custom_op.plan import Equal, InputSpec, OutputSpec, Plan, Variant
from mirage_onnx.custom_op.runtime_sizes import RunDims
from mirage_onnx.errors import MirageError
from mirage_onnx.ir import Candidate, DType, Monomial, Region, ugraph_extents
from mirage_onnx.ir.memory_order import stored_orders
from mirage_onnx.superopt.reach import limits


@dataclass(frozen=True, slots=True)
class Planned:
  """A plan and the tensors of the model that its inputs and outputs are.

  ``permutations``: per input of the plan, the order of dims in which the model has to store it.
  ``interface``: what of the plan is not of the µGraph.
  """

  plan: Plan
  inputs: tuple[str, ...]
  permutations: tuple[tuple[int, ...], ...]
  outputs: tuple[str, ...]
  interface: Interface

  def placed(self, images: Sequence[int], operands: Sequence[InputSpec] = ()) -> Planned:
    """The same in a bundle that has its images under these numbers.

    ``operands``: further inputs of the node, which no kernel reads (``rewrite/body.py``).
    """
    (variant,) = self.plan.variants
    launches = tuple(replace(launch, cubin=images[launch.cubin]) for launch in variant.launches)
    inputs = (*self.plan.inputs, *operands)
    plan = replace(self.plan, inputs=inputs, variants=(replace(variant, launches=launches),))
    interface = replace(self.interface, head=replace(self.interface.head, inputs=inputs))
    return replace(self, plan=plan, interface=interface)


@dataclass(frozen=True, slots=True)
class Places:
  """Where the plan has what is of a region: the names of its inputs and outputs, each once."""

  region: Region
  inputs: tuple[str, ...]
  outputs: tuple[str, ...]

  @classmethod
  def of(cls, region: Region) -> Places:
    sides = region.given, region.outputs
    inputs, outputs = (tuple(dict.fromkeys(x.source.name for x in side)) for side in sides)
    return cls(region, inputs, outputs)

  def dim(self, i: int, d: int) -> tuple[int, int]:
    """(input of the plan, dimension) that has dimension ``d`` of what is given to the region."""
    x = self.region.given[i]
    return self.inputs.index(x.source.name), x.view.source_dim(d) if x.view else d

  def size(self, m: Monomial) -> Monomial:
    """A size as the plan counts inputs."""
    return replace(m, dims=tuple(self.dim(i, d) for i, d in m.dims))

  def made(self, k: int) -> tuple[Monomial, ...]:
    """The dimensions of what output ``k`` of the region is a part of."""
    o = self.region.outputs[k]
    dims = self.region.output_dims[k] if self.region.output_dims else ()
    if o.view is None or not dims:
      return dims or tuple(Monomial(int(d)) for d in o.source.shape or ())
    found: dict[int, Monomial] = {}
    for d, full in enumerate(o.view.fulls):
      own = Monomial(full) if isinstance(full, int) else dims[d]
      at = o.view.source_dim(d)
      had = found.get(at, Monomial(1))
      found[at] = Monomial(had.coefficient * own.coefficient, (*had.dims, *own.dims))
    return tuple(found.values())


def plan_candidate(region: Region, candidate: Candidate, sources: Sequence[KernelSource]) -> Planned:
  """The plan that launches ``sources``, one per kernel, whose images are numbered in their order.

  Raises:
      MirageError: INTERNAL, the kernels are of another region, or of other constants.
  """
  graph = candidate.ugraph
  ends = limits(region) if any(t.limit for t in graph.tensors) else {}
  if wrong := next((t.name for t in graph.tensors if t.limit not in (None, ends.get(t.name))), None):
    raise MirageError("INTERNAL", f"kernels take {wrong} to end where it does not")
  extents = ugraph_extents(graph, candidate.params, region.extents)
  places, orders = Places.of(region), stored_orders(region, graph)
  inputs = {}
  for i in region.given:
    dims, order = i.source.shape or (), orders[i.source.name]
    static = tuple(d if isinstance(d, int) else None for d in (dims[p] for p in order))
    dtype = i.source.dtype or i.dtype
    if dtype.is_four:
      dtype, static = DType.U8, (prod(d or 0 for d in static) // 2,)
    inputs[i.source.name] = InputSpec(dtype.value, static)
  permutations = tuple(orders[name] for name in places.inputs)
  run = RunDims(permutations, places.dim)
  outputs = {
    o.source.name: OutputSpec(o.dtype.value, tuple(map(run.of, places.made(k))))
    for k, o in enumerate(region.outputs)
  }
  head = Plan(
    inputs=tuple(inputs.values()),
    outputs=tuple(outputs.values()),
    variants=(Variant(()),),
    equal=tuple(Equal(run.of(a), run.of(b)) for a, b in region.equal_dims),
  )
  interface = Interface(
    head,
    inputs={i.name: places.inputs.index(i.source.name) for i in region.given},
    outputs={o.name: places.outputs.index(o.source.name) for o in region.outputs},
    sizes={axis: run.of(size) for axis, size in region.runtime.items()},
  )
  plan = make_plan(interface, graph, extents, sources, range(len(sources)))
  return Planned(plan, places.inputs, permutations, places.outputs, interface)
