"""From chosen regions to the model: plans, bundle, replacements.

A region whose body, plan or replacement fails is left as it was: each is prepared by itself, and
where the whole model cannot be rewritten, regions are dropped until it can.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import onnx

from mirage_onnx.codegen.candidates import Compiled
from mirage_onnx.custom_op.assemble import BundleBuilder
from mirage_onnx.custom_op.bundle import write_bundle
from mirage_onnx.custom_op.launch_plan import Places, Planned, plan_candidate
from mirage_onnx.custom_op.node_digest import is_custom, tie_nodes
from mirage_onnx.custom_op.plan import InputSpec
from mirage_onnx.errors import Rejection
from mirage_onnx.failures import guarded, largest_valid
from mirage_onnx.importer import LoadedModel
from mirage_onnx.importer.split_caches import partners, whole_again
from mirage_onnx.ir.dtype import DType
from mirage_onnx.ir.program import Tensor
from mirage_onnx.ir.region import Region
from mirage_onnx.rewrite.body import Body
from mirage_onnx.rewrite.model import BodyMaker, rewrite_model
from mirage_onnx.rewrite.replacement import NAME_POOL, Replacement, WeightUse, internal
from mirage_onnx.rewrite.sections import all_names, closed_again
from mirage_onnx.target import Target

#: One region instance and its kernels.
Kernels = tuple[Region, Compiled]


@dataclass(frozen=True, slots=True)
class Applied:
  """The rewritten model; ``used``: indices of the instances that it replaces.

  ``refused``: why others are left. Those in neither would have been plan number ``pool`` or more.
  """

  model: onnx.ModelProto
  used: tuple[int, ...]
  refused: dict[int, Rejection]


@dataclass(frozen=True, slots=True)
class _Draft:
  """An instance that can be replaced: it has no number yet, for plans are shared.

  Those with equal kernels and equal bodies share one.
  """

  replacement: Replacement
  body: Body
  operands: tuple[InputSpec, ...]


def apply(
  loaded: LoadedModel, chosen: Sequence[Kernels], target: Target, *, pool: int = NAME_POOL
) -> Applied:
  """The model with one custom node per region instance. ``loaded`` stays as it is."""
  if not chosen:
    return Applied(loaded.given, (), {})
  shapes = {name: tuple(int(d) for d in t.shape or ()) for name, t in loaded.tensors.items() if t.is_static}
  half = {name for name, t in loaded.tensors.items() if t.dtype is DType.F16}
  taken = all_names(loaded.nested) if loaded.nested is not None else frozenset[str]()
  maker = BodyMaker(loaded.proto, loaded.base_dir, shapes, loaded.folded, half)
  drafts: dict[int, _Draft] = {}
  refused: dict[int, Rejection] = {}
  for i, (region, compiled) in enumerate(chosen):
    made = guarded("rewrite", region.nodes, partial(_draft, loaded, maker, region, compiled))
    if isinstance(made, Rejection):
      refused[i] = made
    else:
      drafts[i] = made
  for i, why in _halves(loaded, chosen, drafts).items():
    refused[i] = why
    del drafts[i]
  if not drafts:
    return Applied(loaded.given, (), refused)
  result, used = loaded.given, tuple[int, ...]()
  order = list(drafts)

  def attempt(some: Sequence[int]) -> Rejection | None:
    nonlocal result, used

    def rewrite() -> None:
      nonlocal result, used
      builder, numbered = BundleBuilder(target, limit=pool), dict[int, Replacement]()
      for i in (order[k] for k in some):
        draft = drafts[i]
        if added := builder.add(*chosen[i], draft.body.key, draft.operands):
          numbered[i] = replace(draft.replacement, plan=added[0])
      bundle = builder.bundle()
      result = rewrite_model(
        loaded.proto,
        tuple(numbered.values()),
        write_bundle(bundle),
        target_suffix=target.suffix,
        base_dir=loaded.base_dir,
        shapes=shapes,
        folded=loaded.folded,
        half=half,
        taken=taken,
      )
      tie_nodes(result, bundle)
      if loaded.flat is not None and loaded.nested is not None:
        made = [o for node in result.graph.node if is_custom(node.domain, node.op_type) for o in node.output]
        result = closed_again(result, loaded.nested, loaded.flat, made)
      whole_again(result)
      used = tuple(numbered)

    nodes = chosen[order[some[-1]]][0].nodes if len(some) == 1 else ()
    done = guarded("rewrite", nodes, rewrite)
    return done if isinstance(done, Rejection) else None

  _, failed = largest_valid(len(order), attempt)
  refused |= {order[k]: replace(why, nodes=chosen[order[k]][0].nodes) for k, why in failed.items()}
  return Applied(result, used, refused)


def _halves(
  loaded: LoadedModel, chosen: Sequence[Kernels], drafts: Mapping[int, "_Draft"]
) -> dict[int, Rejection]:
  """Regions with one of two parts of a node, of which the other stays: the node would run beside them."""
  others, found = partners(loaded.proto, loaded.node_names), dict[int, Rejection]()
  while others:
    there = {n for i in drafts if i not in found for n in chosen[i][0].nodes}
    more = {
      i: Rejection("NOT_FASTER", f"the other part of its operator, {others[n]}, stays", chosen[i][0].nodes)
      for i in drafts
      if i not in found
      for n in chosen[i][0].nodes
      if n in others and others[n] not in there
    }
    if not more:
      break
    found |= more
  return found


def _draft(loaded: LoadedModel, maker: BodyMaker, region: Region, compiled: Compiled) -> _Draft:
  planned = plan_candidate(region, compiled.candidate, compiled.sources, range(len(compiled.sources)))
  replacement = _replacement(region, planned, 0)
  body = maker.body(replacement)
  return _Draft(replacement, body, tuple(_operand(loaded.tensors[name]) for name in body.operands))


def _operand(tensor: Tensor) -> InputSpec:
  """A constant that only the function body reads, as an input of the plan."""
  if tensor.dtype is None or not tensor.is_static:
    raise internal(f"the constant {tensor.name!r} is of a type that no plan has")
  return InputSpec(tensor.dtype.value, tuple(int(d) for d in tensor.shape or ()))


def _replacement(region: Region, planned: Planned, plan: int) -> Replacement:
  sources = {i.source.name: i.source for i in region.given}

  def use_of(name: str, perm: tuple[int, ...]) -> WeightUse:
    dtype = sources[name].dtype
    if dtype is None or not dtype.is_four:
      return WeightUse(name, perm)
    return WeightUse(name, perm, dtype, tuple(map(int, sources[name].shape or ())))

  uses = [use_of(*of) for of in zip(planned.inputs, planned.permutations, strict=True)]
  weights = tuple(use for use in uses if not use.is_identity)
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
