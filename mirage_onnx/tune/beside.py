"""One node for chosen regions that do not need each other: their kernels, side by side.

What is the fastest for a region alone need not be so beside others, which pass its latency; so combinations
are timed, as one µGraph each, and the best is proven as a whole. Kernels that differ in their tensors only
are timed in one launch, too.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from mirage_onnx import deadline
from mirage_onnx.choosing.siblings import join, siblings
from mirage_onnx.codegen.tiled.alike import alike
from mirage_onnx.compiler.candidates import Compiled, compile_candidates
from mirage_onnx.cores import available_cores
from mirage_onnx.deadline import NEVER, Ends
from mirage_onnx.errors import Rejection, RejectionError
from mirage_onnx.importer import LoadedModel
from mirage_onnx.ir import Candidate, Kernel, KernelParams, KTensor, Program, Region, UGraph, ugraph_extents
from mirage_onnx.match.candidates import RegionCandidate as Instance
from mirage_onnx.match.repeated import RegionMaker
from mirage_onnx.superopt.fed_numbers import product_points
from mirage_onnx.superopt.result import SearchReport, SearchResult, Stop, Verified, varied
from mirage_onnx.superopt.warpgroup_numbers import Shape
from mirage_onnx.target import Target
from mirage_onnx.tune.instances import InstanceChecks
from mirage_onnx.tune.kept_joins import KeptJoins
from mirage_onnx.tune.kept_tuning import KeptTuning
from mirage_onnx.tune.measure import complaints_of, measure_region
from mirage_onnx.tune.outcome import Outcome
from mirage_onnx.tune.race import Measured
from mirage_onnx.verify.prover import prover
from mirage_onnx.verify.weights import ModelWeights, sample_weights

#: Programs and numbers of one region that are tried beside the others, and combinations in all.
OTHERS, MOST = 8, 64
#: Numbers that are tried of all columns together.
NUMBERS = 6
#: As the parts were timed in looks of their own, no interval of pairs says what luck is: so much is.
MIN_GAIN = 0.03


def with_siblings(
  loaded: LoadedModel,
  program: Program,
  chosen: Sequence[tuple[Instance, Outcome]],
  target: Target,
  ends: Ends = NEVER,
  instances: InstanceChecks | None = None,
  tuning: KeptTuning | None = None,
) -> tuple[tuple[tuple[Instance, Outcome], ...], dict[str, Outcome]]:
  """``chosen`` with groups in place of their first regions where that is faster, and their outcomes.

  ``tuning``: where what became of a group in an earlier run is, too.
  """
  weights, store = (tuning.weights, tuning.store) if tuning else (ModelWeights(loaded), None)
  joins = KeptJoins(loaded, weights, target, store)
  fit = [i for i, (_, o) in enumerate(chosen) if o.measured and not o.region.runtime]
  maker, found = RegionMaker(program), dict[str, Outcome]()
  known: dict[str, Outcome | Rejection] = {}
  place: dict[int, tuple[Instance, Outcome]] = {}
  gone: set[int] = set()
  for group in siblings(program, [chosen[i][0] for i in fit]):
    parts = [chosen[fit[i]] for i in group]
    instance = join(maker, [c for c, _ in parts])
    if isinstance(instance, Rejection):
      continue
    key = instance.region.key
    if key not in known and not ends.over:
      with suppress(deadline.OverdueError), deadline.until(ends.at):
        known[key] = _measured(instance.region, parts, target, ends, joins)
    if key not in known:  # there is no time: they stay nodes of their own
      continue
    outcome = known[key]
    if isinstance(outcome, Rejection):
      continue
    assert outcome.compiled is not None
    if instances and any(instances.verdicts([instance], outcome.compiled.candidate)):
      continue  # the programs may be others than those that were safe for the parts
    had = found.get(key, outcome)
    found[key] = replace(had, instances=(*had.instances, instance))
    place[fit[group[0]]] = instance, outcome
    gone |= {fit[i] for i in group}
  kept = [place.get(i, own) for i, own in enumerate(chosen) if i in place or i not in gone]
  return tuple((c, found.get(o.region.key, o)) for c, o in kept), found


def _measured(
  region: Region, parts: Sequence[tuple[Instance, Outcome]], target: Target, ends: Ends, joins: KeptJoins
) -> Outcome | Rejection:
  """The fastest combination of what the parts have, as an earlier run has found it, or timed now."""
  options = [_programs(o) for _, o in parts]
  key = joins.key(region, options, [o.measured.kernel_us for _, o in parts if o.measured])
  found = _known(region, parts, options, target, joins, key)
  if found is None:
    try:
      made = _fastest(region, parts, options, target, ends, joins.loaded)
    except RejectionError as error:
      return error.rejection
    if not ends.over:
      joins.keep(key, made)
    found = made if isinstance(made, Rejection) else made[1:]
  if isinstance(found, Rejection):
    return found
  best, measured = found
  own = best.candidate
  proof = prover(region, sample_weights(joins.loaded, region), derived=True)(region, own.ugraph, own.params)
  if isinstance(proof, Rejection):
    return proof
  reports = [o.result.report for _, o in parts if o.result]
  report = SearchReport(
    sum(r.seconds for r in reports), sum(r.states for r in reports), sum(r.built for r in reports), 1,
    Stop.EXHAUSTED, (), (),
  )  # fmt: skip
  return Outcome(
    region, (), sum(o.baseline_us for _, o in parts),
    SearchResult((Verified(own, proof),), report), best, measured,
  )  # fmt: skip


def _programs(o: Outcome) -> tuple[Candidate, ...]:
  """What was best for a part, and what is tried of it beside others."""
  assert o.compiled is not None
  assert o.result is not None
  others = (v.candidate for v in varied(o.result.candidates, OTHERS))
  return tuple(dict.fromkeys((o.compiled.candidate, *others)))


def _known(
  region: Region,
  parts: Sequence[tuple[Instance, Outcome]],
  options: Sequence[Sequence[Candidate]],
  target: Target,
  joins: KeptJoins,
  key: str,
) -> tuple[Compiled, Measured] | Rejection | None:
  """What an earlier run has found; None: it has to be timed."""
  kept = joins.known(key)
  if kept is None or isinstance(kept, Rejection):
    return kept and replace(kept, nodes=region.nodes)
  point, value = kept
  try:
    own = [(c.region, some[n]) for (c, _), some, n in zip(parts, options, point, strict=True)]
    apart = side_by_side(region, own)
  except (ValueError, IndexError, RejectionError):
    return None
  return joins.made(
    region, apart, value, partial(complaints_of, joins.loaded, target=target, weights=joins.weights)
  )


def _fastest(
  region: Region,
  parts: Sequence[tuple[Instance, Outcome]],
  options: Sequence[Sequence[Candidate]],
  target: Target,
  ends: Ends,
  loaded: LoadedModel,
) -> tuple[tuple[int, ...], Compiled, Measured] | Rejection:
  """The fastest combination, which program of each part it has, and its times.

  First what was best for each, then other programs and numbers of one of them, as long as that helps.

  Raises:
      RejectionError: the parts do not fit beside each other.
  """
  asked: dict[Candidate, tuple[int, ...]] = {}

  def compiled(points: Iterable[tuple[int, ...]]) -> list[Compiled]:
    new: list[Candidate] = []
    for point in points:
      own = [(c.region, found[n]) for (c, _), found, n in zip(parts, options, point, strict=True)]
      apart = side_by_side(region, own)
      numbers = () if asked else as_one_product(region, apart, target)
      both = dict.fromkeys((apart, in_one_launch(region, apart), *numbers), point)
      new += both
      asked.update(both)
    return compile_candidates(region, new, target, keep=len(new), workers=available_cores())[0]

  def more(best: Compiled, tried: Sequence[Compiled]) -> list[Compiled]:
    if ends.over:
      return []
    at, done = asked[best.candidate], {*asked.values()}
    near = [(*at[:i], n, *at[i + 1 :]) for i, own in enumerate(options) for n in range(len(own))]
    # What is alike in all parts comes first: it can be one launch.
    near = [*((n,) * len(at) for n in range(min(map(len, options)))), *near]
    return compiled([p for p in dict.fromkeys(near) if p not in done][: MOST - len(done)])

  best, measured = measure_region(loaded, region, compiled([(0,) * len(parts)]), target, more)
  if isinstance(measured, Rejection):
    return measured
  assert best is not None
  apart_us = sum(o.measured.kernel_us for _, o in parts if o.measured)
  if measured.kernel_us > apart_us * (1 - MIN_GAIN):
    reason = f"{measured.kernel_us:.2f} us measured against {apart_us:.2f} us in nodes of their own"
    return Rejection("NOT_FASTER", reason, region.nodes)
  return asked[best.candidate], best, measured


def in_one_launch(region: Region, candidate: Candidate) -> Candidate:
  """The same, kernels in the launch of the one in front where they are alike and have equal numbers.

  Streaming kernels read beside each other as they are; ranks of a cluster have a place in their launch.
  """
  graph, params, found = candidate.ugraph, candidate.params, list[KernelParams]()
  extents = ugraph_extents(graph, params, region.extents)
  front = 0
  for i, (k, own) in enumerate(zip(graph.kernels, params, strict=True)):
    joins = i > 0 and own == params[front] and own.instruction != "mma" and own.cluster == 1
    joins = joins and all(alike(graph, other, k, extents) for other in graph.kernels[front:i])
    front = front if joins else i
    found.append(replace(own, beside=joins))
  return replace(candidate, params=tuple(found))


def as_one_product(region: Region, candidate: Candidate, target: Target) -> tuple[Candidate, ...]:
  """Kernels that are all alike, in one launch with the numbers of one product of all their columns.

  Those that are best for each alone fill the GPU with the tiles of one.
  """
  graph = candidate.ugraph
  first, *others = graph.kernels
  extents = ugraph_extents(graph, candidate.params, region.extents)
  tensors = {t.name: t for t in graph.tensors}
  pairs = ((a, b) for i, a in enumerate(graph.kernels) for b in graph.kernels[i + 1 :])
  shape = Shape.of(first, tensors, extents)
  if not others or shape is None or not all(alike(graph, a, b, extents) for a, b in pairs):
    return ()
  wide = {**extents, shape.columns: extents[shape.columns] * len(graph.kernels)}
  at = first.grid.index(shape.columns)
  points = product_points(first, tensors, wide, target, NUMBERS, counted=bool(region.runtime))
  fit = [(us, p) for us, p in points if p.cluster == 1 and p.tile[at] <= extents[shape.columns]]
  return tuple(
    replace(candidate, params=(p, *(replace(p, beside=True) for _ in others)), predicted_us=us)
    for us, p in fit
  )


def side_by_side(region: Region, parts: Sequence[tuple[Region, Candidate]]) -> Candidate:
  """The kernels of ``parts``, in order, over the tensors and axes of ``region``.

  Raises:
      RejectionError: LAYOUT, a tensor has other axes in a part than in the region, or is stored in
          two orders.
  """
  whole = {(x.source.name, x.view): x for x in (*region.given, *region.outputs)}
  tensors: dict[str, KTensor] = {}
  kernels: list[Kernel] = []
  for part, candidate in parts:
    axes: dict[str, str] = {}
    names: dict[str, str] = {}
    for x in (*part.given, *part.outputs):
      own = whole.get((x.source.name, x.view))
      if own is None or len(own.axes) != len(x.axes):
        raise RejectionError("LAYOUT", f"{x.source.name} has other axes beside other regions")
      names[x.name] = own.name
      for a, b in zip(x.axes, own.axes, strict=True):
        if axes.setdefault(a, b) != b:
          raise RejectionError("LAYOUT", f"axis {a} is two axes beside other regions")
    graph = candidate.ugraph
    for k in graph.kernels:
      name = f"k{len(kernels) + graph.kernels.index(k)}"
      axes |= {f"{a}/{k.name}": f"{axes[a]}/{name}" for a in k.grid if "/" not in a}
    for t in graph.tensors:
      names.setdefault(t.name, f"t{sum(u.role == 'temp' for u in tensors.values())}")
      new = t.renamed(names[t.name], axes, names)
      if tensors.setdefault(new.name, new) != new:
        raise RejectionError("LAYOUT", f"{new.name} is stored in two orders")
    kernels += [k.renamed(f"k{len(kernels) + i}", axes, names) for i, k in enumerate(graph.kernels)]
  order = [x.name for x in region.given]
  temps = [n for n, t in tensors.items() if t.role == "temp"]
  listed = [*order, *temps, *(x.name for x in region.outputs)]
  return Candidate(
    UGraph(tuple(tensors[n] for n in listed if n in tensors), tuple(kernels)),
    tuple(p for _, c in parts for p in c.params),
    sum(c.predicted_us for _, c in parts),
  )
