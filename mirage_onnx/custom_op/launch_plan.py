"""From a chosen candidate to its launch plan and to what the rewriter replaces.

Inputs of the plan are the region's inputs in canonical order, each in the dim order that its
kernels read (a weight stored along its contracted axis is transposed once, by the rewriter).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from mirage_onnx.codegen.source import KernelSource
from mirage_onnx.custom_op.expr import Expr, const
from mirage_onnx.custom_op.plan import (
    Equal,
    InputPtr,
    InputSpec,
    Launch,
    OutputPtr,
    OutputSpec,
    Plan,
    Variant,
    WorkspacePtr,
)  # fmt: skip
from mirage_onnx.custom_op.runtime_sizes import RuntimeSizes, total
from mirage_onnx.errors import MirageError
from mirage_onnx.ir.region import Region, RegionTensor
from mirage_onnx.ir.runtime_extent import Monomial
from mirage_onnx.ir.ugraph import Candidate, ugraph_extents


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan and, per input, the permutation of dims in which the model has to store it."""

    plan: Plan
    permutations: tuple[tuple[int, ...], ...]


def dim_permutation(source: RegionTensor, axes: tuple[str, ...]) -> tuple[int, ...]:
    """The order of ``source``'s dims that makes its memory order ``axes``.

    Dims that are one axis move together; dims of extent 1 stay where they are if all can.

    Raises:
        MirageError: INTERNAL where one dimension holds several axes: no order of dims does it.
    """
    if axes == source.axes:
        return tuple(range(len(source.dims)))
    if source.splits_dims:
        name = source.tensor.name
        raise MirageError("INTERNAL", f"no order of the dims of {name!r} gives {axes}")
    groups: dict[str, list[int]] = {}
    for i, held in enumerate(source.dims):
        for axis in held:
            groups.setdefault(axis, []).append(i)
    moved = iter(i for a in axes for i in groups[a])
    return tuple(next(moved) if held else i for i, held in enumerate(source.dims))


def plan_candidate(
    region: Region, candidate: Candidate, sources: Sequence[KernelSource], cubins: Sequence[int]
) -> Planned:
    """The plan that launches ``sources`` (one per kernel, image ids ``cubins``)."""
    graph = candidate.ugraph
    extents = ugraph_extents(graph, candidate.params, region.extents)
    tensors = {t.name: t for t in graph.tensors}
    inputs: list[InputSpec] = []
    permutations: list[tuple[int, ...]] = []
    for i in region.inputs:
        axes = tensors[i.name].axes if i.name in tensors else i.axes
        order = dim_permutation(i, axes)
        shape = tuple(d if isinstance(d, int) else None for d in i.tensor.shape or ())
        inputs.append(InputSpec(i.dtype.value, tuple(shape[p] for p in order)))
        permutations.append(order)
    known = RuntimeSizes(extents, region.runtime, permutations)
    offsets: dict[str, Expr] = {}
    size = const(0)
    for t in graph.tensors:
        if t.role == "temp":
            offsets[t.name] = size
            size = total(size, known.aligned_bytes(t))
    pointers: dict[str, InputPtr | OutputPtr | WorkspacePtr] = {}
    for k, i in enumerate(region.inputs):
        pointers[i.name] = InputPtr(k)
    for k, o in enumerate(region.outputs):
        pointers[o.name] = OutputPtr(k)
    for name, offset in offsets.items():
        pointers[name] = WorkspacePtr(offset)
    launches = tuple(
        Launch(
            cubin=cubin,
            kernel=s.name,
            grid=(known.blocks(s), const(s.grid[1]), const(s.grid[2])),
            block=s.block,
            args=(*(pointers[a] for a in s.args), *(known.argument(a) for a in s.sizes)),
            cluster=s.cluster,
            smem_bytes=s.smem_bytes,
            pdl=s.pdl,
        )
        for s, cubin in zip(sources, cubins, strict=True)
    )
    dims = region.output_dims or tuple(
        tuple(Monomial(int(d)) for d in o.tensor.shape or ()) for o in region.outputs
    )
    outputs = tuple(
        OutputSpec(o.dtype.value, tuple(map(known.of, each)))
        for o, each in zip(region.outputs, dims, strict=True)
    )
    plan = Plan(
        inputs=tuple(inputs),
        outputs=outputs,
        variants=(Variant(launches),),
        workspace=size if offsets else None,
        equal=tuple(Equal(known.of(a), known.of(b)) for a, b in region.equal_dims),
    )
    return Planned(plan, tuple(permutations))
