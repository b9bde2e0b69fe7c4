"""From chosen regions to the model: plans, bundle, replacements."""

from collections.abc import Sequence
from dataclasses import replace

import onnx

from mirage_onnx.codegen.candidates import Compiled
from mirage_onnx.custom_op.assemble import BundleBuilder
from mirage_onnx.custom_op.bundle import write_bundle
from mirage_onnx.custom_op.launch_plan import Places, Planned, plan_candidate
from mirage_onnx.custom_op.plan import InputSpec
from mirage_onnx.importer import LoadedModel
from mirage_onnx.ir.dtype import DType
from mirage_onnx.ir.program import Tensor
from mirage_onnx.ir.region import Region
from mirage_onnx.rewrite.model import function_bodies, rewrite_model
from mirage_onnx.rewrite.replacement import Replacement, WeightUse, internal
from mirage_onnx.target import Target

#: The library registers MuGraph_0 .. MuGraph_127 (a session's start grows with their number).
NAME_POOL = 128


def apply(
  loaded: LoadedModel,
  chosen: Sequence[tuple[Region, Compiled]],
  target: Target,
  *,
  pool: int = NAME_POOL,
) -> tuple[onnx.ModelProto, tuple[int, ...]]:
  """The model with one custom node per region instance, and the indices of those replaced.

  ``loaded`` stays as it is. Instances whose plan would be number ``pool`` or more are left.
  """
  if not chosen:
    return loaded.given, ()
  # A plan is shared by instances with equal kernels and equal bodies; the digest of the body
  # needs the replacement, so a draft of each comes first, with no number yet.
  drafts = [
    _replacement(r, plan_candidate(r, c.candidate, c.sources, range(len(c.sources))), 0) for r, c in chosen
  ]
  shapes = {name: tuple(int(d) for d in t.shape or ()) for name, t in loaded.tensors.items() if t.is_static}
  half = {name for name, t in loaded.tensors.items() if t.dtype is DType.F16}
  bodies = function_bodies(loaded.proto, drafts, loaded.base_dir, shapes, loaded.folded, half)
  builder = BundleBuilder(target, limit=pool)
  numbered: dict[int, Replacement] = {}
  for i, ((region, compiled), draft, body) in enumerate(zip(chosen, drafts, bodies, strict=True)):
    operands = [_operand(loaded.tensors[name]) for name in body.operands]
    if added := builder.add(region, compiled, body.key, operands):
      numbered[i] = replace(draft, plan=added[0])
  model = rewrite_model(
    loaded.proto,
    tuple(numbered.values()),
    write_bundle(builder.bundle()),
    target_suffix=target.suffix,
    base_dir=loaded.base_dir,
    shapes=shapes,
    folded=loaded.folded,
    half=half,
  )
  return model, tuple(numbered)


def _operand(tensor: Tensor) -> InputSpec:
  """A constant that only the function body reads, as an input of the plan."""
  if tensor.dtype is None or not tensor.is_static:
    raise internal(f"the constant {tensor.name!r} is of a type that no plan has")
  return InputSpec(tensor.dtype.value, tuple(int(d) for d in tensor.shape or ()))


def _replacement(region: Region, planned: Planned, plan: int) -> Replacement:
  weights = tuple(
    WeightUse(name, perm)
    for name, perm in zip(planned.inputs, planned.permutations, strict=True)
    if perm != tuple(range(len(perm)))
  )
  size = Places.of(region).size
  shapes = {name: tuple(map(size, dims)) for name, dims in region.inner_dims.items()}
  return Replacement(
    nodes=region.nodes,
    inputs=planned.inputs,
    weights=weights,
    outputs=planned.outputs,
    workspace=planned.plan.workspace is not None,
    plan=plan,
    shapes=shapes,
  )
