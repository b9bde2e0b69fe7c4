"""From chosen regions to the model: plans, bundle, replacements.

A region whose body, plan or replacement fails is left as it was: each is prepared by itself, and
where the whole model cannot be rewritten, regions are dropped until it can.

Of several targets (``others``) each has its nodes in the model. A region that several of them replace is one
node, of one of them, whose function body calls the node of the next (``call_body.py``).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import onnx

from mirage_onnx.compiler.candidates import Compiled
from mirage_onnx.custom_op.assemble import BundleBuilder
from mirage_onnx.custom_op.bundle import write_bundle
from mirage_onnx.custom_op.launch_plan import Places, Planned, plan_candidate
from mirage_onnx.custom_op.node_digest import is_custom, tie_nodes
from mirage_onnx.custom_op.plan import InputSpec
from mirage_onnx.errors import Rejection
from mirage_onnx.failures import guarded, largest_valid
from mirage_onnx.importer import LoadedModel
from mirage_onnx.importer.split_caches import partners, whole_again
from mirage_onnx.importer.split_norms import whole_norms
from mirage_onnx.importer.split_projections import whole_projections
from mirage_onnx.importer.split_windows import whole_windows
from mirage_onnx.ir.dtype import DType
from mirage_onnx.ir.program import Tensor
from mirage_onnx.ir.region import Region
from mirage_onnx.rewrite.body import Body
from mirage_onnx.rewrite.call_body import call_body, can_call
from mirage_onnx.rewrite.model import DOMAIN_PREFIX, BodyMaker, rewrite_model
from mirage_onnx.rewrite.replacement import NAME_POOL, Replacement, WeightUse, internal
from mirage_onnx.rewrite.sections import all_names, closed_again
from mirage_onnx.rewrite.value_types import forget_contradicted
from mirage_onnx.target import Target

#: One region instance and its kernels.
Kernels = tuple[Region, Compiled]


@dataclass(frozen=True, slots=True)
class Layer:
  """What another target replaces; an instance has the nodes of one of the first target's, or none of them."""

  target: Target
  chosen: tuple[Kernels, ...]


@dataclass(frozen=True, slots=True)
class Applied:
  """The rewritten model; ``used``: indices of the instances that it replaces.

  ``refused``: why others are left. Those in neither would have been plan number ``pool`` or more.
  ``others``: of every further target, the indices of the instances that are in the model.
  """

  model: onnx.ModelProto
  used: tuple[int, ...]
  refused: dict[int, Rejection]
  others: tuple[tuple[int, ...], ...] = ()


#: (place of the target, place of the instance among the target's).
_At = tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Draft:
  """An instance that can be replaced: it has no number yet, for plans are shared.

  Those with equal kernels and equal bodies share one.
  """

  planned: Planned
  replacement: Replacement
  body: Body
  operands: tuple[InputSpec, ...]


def apply(
  loaded: LoadedModel,
  chosen: Sequence[Kernels],
  target: Target,
  *,
  pool: int = NAME_POOL,
  others: Sequence[Layer] = (),
) -> Applied:
  """The model with one custom node per region instance. ``loaded`` stays as it is."""
  layers = (Layer(target, tuple(chosen)), *others)
  if not any(layer.chosen for layer in layers):
    return Applied(loaded.given, (), {}, ((),) * len(others))
  shapes = {name: tuple(int(d) for d in t.shape or ()) for name, t in loaded.tensors.items() if t.is_static}
  half = {name for name, t in loaded.tensors.items() if t.dtype is DType.F16}
  taken = all_names(loaded.nested) if loaded.nested is not None else frozenset[str]()
  maker = BodyMaker(loaded.proto, loaded.base_dir, shapes, loaded.folded, half)
  drafts: dict[_At, _Draft] = {}
  refused: dict[_At, Rejection] = {}
  for k, layer in enumerate(layers):
    for i, (region, compiled) in enumerate(layer.chosen):
      made = guarded("rewrite", region.nodes, partial(_draft, loaded, maker, region, compiled))
      if isinstance(made, Rejection):
        refused[k, i] = made
      else:
        drafts[k, i] = made
    for i, why in _halves(loaded, layer.chosen, {i for at, i in drafts if at == k}).items():
      refused[k, i] = why
      del drafts[k, i]
  if not drafts:
    return Applied(loaded.given, (), _of_first(refused), ((),) * len(others))
  result, used = loaded.given, tuple[_At, ...]()
  order = _places(drafts, layers)

  def attempt(some: Sequence[int]) -> Rejection | None:
    nonlocal result, used

    def rewrite() -> None:
      nonlocal result, used
      builder, numbered = BundleBuilder(target, limit=pool), dict[_At, Replacement]()
      for again in (False, True):
        for place in (order[k] for k in some):
          numbered |= _numbered(place, drafts, layers, builder, maker.opsets)
        if again or not any("_" in layer.target.suffix for layer in layers):
          break
        builder = BundleBuilder(target, limit=pool, numbers=builder.own_first())
      inside = {id(r.inner) for r in numbered.values()}
      bundle = builder.bundle()
      result = rewrite_model(
        loaded.proto,
        tuple(r for r in numbered.values() if id(r) not in inside),
        write_bundle(bundle),
        target_suffix=target.suffix,
        other_suffixes=[layer.target.suffix for layer in others],
        maker=maker,
        taken=taken,
      )
      tie_nodes(result, bundle)
      forget_contradicted(result.graph, loaded.tensors)
      if loaded.flat is not None and loaded.nested is not None:
        made = [o for node in result.graph.node if is_custom(node.domain, node.op_type) for o in node.output]
        result = closed_again(result, loaded.nested, loaded.flat, made, loaded.tensors)
      whole_norms(result)  # before it is forgotten which graph is that of steps
      whole_again(result)
      whole_projections(result)
      whole_windows(result)
      used = tuple(numbered)

    nodes = _region(order[some[-1]][0], layers).nodes if len(some) == 1 else ()
    done = guarded("rewrite", nodes, rewrite)
    return done if isinstance(done, Rejection) else None

  _, failed = largest_valid(len(order), attempt)
  for n, why in failed.items():
    refused |= {at: replace(why, nodes=_region(at, layers).nodes) for at in order[n]}
  of_each = [tuple(sorted(i for at, i in used if at == k)) for k in range(len(layers))]
  return Applied(result, of_each[0], _of_first(refused), tuple(of_each[1:]))


def _of_first(refused: Mapping[_At, Rejection]) -> dict[int, Rejection]:
  return {i: why for (k, i), why in refused.items() if k == 0}


def _region(at: _At, layers: Sequence[Layer]) -> Region:
  return layers[at[0]].chosen[at[1]][0]


def _places(drafts: Mapping[_At, "_Draft"], layers: Sequence[Layer]) -> list[list[_At]]:
  """The instances that are in one place of the model, the outer ones first.

  Those with a scratch tensor, then those for one GPU: where kernels of its architecture are outside of
  these, the GPU never comes to its own, which are left out.
  """
  found: dict[tuple[frozenset[str], tuple[str, ...]], list[_At]] = {}
  for at, draft in drafts.items():
    key = frozenset(_region(at, layers).nodes), draft.replacement.outputs
    found.setdefault(key, []).append(at)

  def order(at: _At) -> tuple[bool, bool, _At]:
    return not drafts[at].replacement.workspace, "_" not in layers[at[0]].target.suffix, at

  nests = [sorted(same, key=order) for same in found.values()]
  suffixes = [[layers[k].target.suffix for k, _ in nest] for nest in nests]
  return [
    [at for i, at in enumerate(nest) if own[i].partition("_")[0] not in own[:i]]
    for nest, own in zip(nests, suffixes, strict=True)
  ]


def _numbered(
  place: Sequence[_At],
  drafts: Mapping[_At, "_Draft"],
  layers: Sequence[Layer],
  builder: BundleBuilder,
  opsets: Mapping[str, int],
) -> dict[_At, Replacement]:
  """The instances of one place with the numbers of their plans, the innermost first."""
  found, inner = dict[_At, Replacement](), None
  for at in reversed(place):
    draft, target = drafts[at], layers[at[0]].target
    key, outer = draft.body.key, replace(draft.replacement, body=draft.body)
    if len(layers) > 1:
      outer = replace(outer, suffix=target.suffix)
    if inner is not None:
      if not can_call(outer, inner):
        continue
      domain = f"{DOMAIN_PREFIX}.{inner.suffix}"
      key = call_body(outer, inner, draft.body.operands, domain, opsets).key
    plan = builder.add(*layers[at[0]].chosen[at[1]], draft.planned, key, draft.operands, target)
    if plan is not None:
      inner = found[at] = replace(outer, plan=plan, inner=inner)
  return found


def _halves(loaded: LoadedModel, chosen: Sequence[Kernels], drafts: Collection[int]) -> dict[int, Rejection]:
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
  planned = plan_candidate(region, compiled.candidate, compiled.sources)
  replacement = _replacement(region, planned, 0)
  body = maker.body(replacement)
  return _Draft(
    planned,
    replacement,
    body,
    tuple(_operand(loaded.tensors[name]) for name in body.operands),
  )


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
