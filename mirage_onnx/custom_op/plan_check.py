"""A plan against the kernels that the generator gives for it: every field of every launch.

Nothing at load ties a launch to its µGraph, so ``verify`` does: one variant for all shapes, the
kernels in the generator's order and each once, with its block, cluster, shared memory, ``pdl``, kinds
and element types of arguments, and at several sizes the grid, the bytes that it says a kernel touches,
and room for every tensor. Last, every line is compared with that of the plan made again from the
µGraph and the recorded interface: the arguments' order, offsets, equal sizes, dims of the outputs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest

from mirage_onnx.custom_op.arguments import InputPtr, Int32, MapOf, OutputPtr, WorkspacePtr
from mirage_onnx.custom_op.expr import ExprError
from mirage_onnx.custom_op.plan import Launch, Plan
from mirage_onnx.custom_op.provenance import KernelRecord, Regenerated

#: Of dims that any size may have, in turn; the equalities that a plan states hold of equal dims.
SIZES = (1, 2, 3, 5, 16, 33, 100, 1024)
_BYTES = {
  "bool": 1, "i8": 1, "u8": 1, "e4m3": 1, "e5m2": 1, "f16": 2, "bf16": 2, "i16": 2, "u16": 2, "f32": 4,
  "i32": 4, "u32": 4,
}  # fmt: skip


def plan_differs(plan: Plan, made: Regenerated) -> str:
  """Why ``plan`` is not the one that was made again, or ""; where that is known, what is wrong with it."""
  return next(_reasons(plan, made.kernels), "") or next(_lines(plan, made.plan), "")


def _lines(plan: Plan, made: Plan) -> Iterator[str]:
  """The lines that are others; numbers of images are compared by what they hold (``sources.py``)."""
  ((planned,), (variant,)) = plan.variants, made.variants
  pairs = zip(planned.launches, variant.launches, strict=True)
  launches = tuple(replace(ours, cubin=theirs.cubin) for theirs, ours in pairs)
  again = replace(made, variants=(replace(variant, launches=launches),))
  texts = plan.to_text().splitlines(), again.to_text().splitlines()
  for n, (theirs, ours) in enumerate(zip_longest(*texts, fillvalue=""), 1):
    if theirs != ours:
      yield f"line {n} of its plan is {theirs[:200]!r}, the generator makes {ours[:200]!r}"


def _reasons(plan: Plan, kernels: Sequence[KernelRecord]) -> Iterator[str]:
  if len(plan.variants) != 1:
    yield f"its plan has {len(plan.variants)} variants, the generator makes one"
  for variant in plan.variants:
    launched, made = [k.kernel for k in variant.launches], [k.source.name for k in kernels]
    if launched != made:
      yield f"its plan launches {launched}, the generator makes {made}"
      return
    for launch, kernel in zip(variant.launches, kernels, strict=True):
      yield from (f"kernel {launch.kernel}: {why}" for why in _fixed(plan, launch, kernel))
    for size in SIZES:
      shapes = [[size if d is None else d for d in spec.dims] for spec in plan.inputs]
      try:
        yield from _sized(plan, variant.launches, kernels, shapes)
      except ExprError as error:
        yield f"at size {size} its plan cannot be evaluated ({error})"


def _fixed(plan: Plan, launch: Launch, kernel: KernelRecord) -> Iterator[str]:
  """What does not depend on sizes."""
  source = kernel.source
  for what, planned, made in (
    ("block", launch.block, source.block),
    ("cluster", launch.cluster, source.cluster),
    ("smem", launch.smem_bytes, source.smem_bytes),
    ("pdl", int(launch.pdl), int(source.pdl)),
    ("arguments", len(launch.args), len(source.args) + len(source.sizes) + len(source.maps)),
  ):
    if planned != made:
      yield f"its plan has {what} {planned}, the generator {made}"
      return
  for i, arg in enumerate(launch.args):
    if (n := i - len(source.args) - len(source.sizes)) >= 0:
      at = launch.args[source.args.index(source.maps[n].tensor)]
      if arg != MapOf(at, *source.maps[n].words):  # type: ignore[arg-type]  # a pointer, or refused above
        yield f"argument {i} is a tensor map of {source.maps[n].tensor}, its plan has {arg.word()}"
      continue
    if i >= len(source.args):
      if not isinstance(arg, Int32):
        yield f"argument {i} is a size, its plan has {arg.word()}"
      continue
    name, dtype = source.args[i], kernel.arg_dtypes[i]
    if not isinstance(arg, InputPtr | OutputPtr | WorkspacePtr):
      yield f"argument {i} is tensor {name}, its plan has {arg.word()}"
    elif not isinstance(arg, WorkspacePtr):
      spec = (plan.inputs if isinstance(arg, InputPtr) else plan.outputs)[arg.index]
      if spec.dtype != dtype:
        yield f"argument {i} is tensor {name} of {dtype}, {arg.word()} of its plan is {spec.dtype}"


def _sized(
  plan: Plan, launches: Sequence[Launch], kernels: Sequence[KernelRecord], shapes: Sequence[Sequence[int]]
) -> Iterator[str]:
  if any(e.left.eval(shapes) != e.right.eval(shapes) for e in plan.equal):
    return  # no run has these sizes
  workspace = plan.workspace.eval(shapes) if plan.workspace else 0
  outputs = [_total([d.eval(shapes) for d in o.dims], o.dtype) for o in plan.outputs]
  inputs = [_total(shape, i.dtype) for shape, i in zip(shapes, plan.inputs, strict=True)]
  for launch, kernel in zip(launches, kernels, strict=True):
    source = kernel.source
    counts = [a.value.eval(shapes) for a in launch.args if isinstance(a, Int32)]
    sizes = dict(zip(source.sizes, counts, strict=True))
    grid, made = tuple(extent.eval(shapes) for extent in launch.grid), source.grid_at(sizes)
    if grid != made:
      yield f"kernel {launch.kernel}: at inputs of {shapes} its plan has grid {grid}, the generator {made}"
    if 0 in made:
      continue
    for arg, name, needed in zip(launch.args, source.args, kernel.bytes_at(sizes), strict=False):
      if isinstance(arg, InputPtr):
        room = inputs[arg.index]
      elif isinstance(arg, OutputPtr):
        room = outputs[arg.index]
      elif isinstance(arg, WorkspacePtr):
        room = workspace - arg.offset.eval(shapes)
      else:
        continue
      where = f"kernel {launch.kernel}: at inputs of {shapes} tensor {name} takes {needed} bytes"
      if room < needed:
        yield f"{where}, {arg.word()} of its plan has {room}"
      if (declared := arg.bytes.eval(shapes)) != needed:
        yield f"{where}, {arg.word()} of its plan says {declared}"


def _total(dims: Sequence[int], dtype: str) -> int:
  total = _BYTES.get(dtype, 8)
  for d in dims:
    total *= d
  return total
