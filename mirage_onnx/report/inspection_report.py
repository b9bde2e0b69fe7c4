"""What ``inspect`` and ``explain`` found, made into their reports."""

from collections.abc import Iterable

from mirage_onnx.errors import Rejection
from mirage_onnx.inspection import Explanation, Offer, Survey
from mirage_onnx.inspection.dot import to_dot
from mirage_onnx.inspection.node_answer import NodeAnswer
from mirage_onnx.inspection.svg import to_svg
from mirage_onnx.ir import Candidate, RegionTensor, Tensor, print_ugraph
from mirage_onnx.match.candidates import RegionCandidate as Instance
from mirage_onnx.remedies import link, remedy
from mirage_onnx.report.inspection import (
  AskedReport,
  BarrierReport,
  BorderReport,
  CandidateReport,
  ChosenReport,
  DimensionReport,
  ExplainReport,
  InspectReport,
  KernelReport,
  NumericReport,
  OfferReport,
  ProofReport,
  RefusalReport,
  SearchedReport,
  TensorReport,
  TotalsReport,
)
from mirage_onnx.report.struct import SCHEMA


def inspect_report(
  survey: Survey, *, source: str | None, target: str, seconds: float, every: bool
) -> InspectReport:
  """The report of a survey; ``every``: regions outside the partition too."""
  shown = (o for o in survey.offers.values() if every or o.chosen)
  return InspectReport(
    schema=SCHEMA,
    input=source,
    target=target,
    seconds=round(seconds, 3),
    regions=[_offer(survey, o, (o.chosen or o.instances)[0]) for o in shown],
    barriers=[
      BarrierReport(
        code=b.code, count=len(b.nodes), ops=dict(sorted(b.ops.items())),
        reason_text=b.reason, nodes=list(b.nodes),
      )
      for b in survey.barriers
    ],
    totals=_totals(survey),
    dimensions=_dimensions(survey),
  )  # fmt: skip


def _dimensions(survey: Survey) -> list[DimensionReport]:
  return [
    DimensionReport(name=n, sizes=sorted(sizes), typical=survey.typical[n])
    for n, sizes in survey.sizes.items()
  ]


def _totals(survey: Survey) -> TotalsReport:
  nodes = [n.name for n in survey.program.nodes]
  return TotalsReport(
    nodes=len(nodes),
    nodes_in_regions=len(survey.covered),
    nodes_offered=len(survey.offered),
    nodes_untimed=sum(n not in survey.node_us and n not in survey.bounded_us for n in nodes),
    nodes_bounded=len(survey.bounded_us),
    flops=survey.flops().total,
    flops_in_regions=survey.flops(survey.covered).total,
    flops_unknown=dict(survey.flops_unknown.most_common()),
    weight_bytes=survey.weight_bytes(),
    weight_bytes_in_regions=survey.weight_bytes(survey.covered),
    ort_us=_us(survey.model_us) if survey.node_us else None,
    ort_us_in_regions=_us(survey.saved_us),
    floor_us=_us(survey.floor_us),
    gain_us=_us(survey.saved_us - survey.floor_us),
  )


def _offer(survey: Survey, o: Offer, instance: Instance) -> OfferReport:
  nodes = instance.region.nodes
  return OfferReport(
    key=instance.region.key,
    nodes=list(nodes),
    ops=[survey.op_type[n] for n in nodes],
    chosen=len(o.chosen),
    offered=len(o.instances),
    inputs=_tensors(instance.region.given),
    outputs=_tensors(instance.region.outputs),
    flops=o.work.flops.total,
    mma_flops=o.work.flops.contraction,
    weight_bytes=o.work.weight_bytes,
    activation_bytes=o.work.activation_bytes,
    floor_us=_us(o.floor_us),
    ort_us=None if o.unknown else _us(o.ort_us),
    gain_us=None if o.unknown else _us(o.gain_us),
    total_gain_us=None if o.unknown else _us(o.total_gain_us),
    unknown_nodes=o.unknown,
  )


def _tensors(tensors: Iterable[RegionTensor]) -> list[TensorReport]:
  return [
    TensorReport(
      name=x.tensor.name, dtype=str(x.dtype), shape=list(x.tensor.shape or ()),
      weight=x.is_weight,
    )
    for x in tensors
  ]  # fmt: skip


def node_report(
  survey: Survey, node: NodeAnswer, *, source: str | None, target: str, seconds: float
) -> ExplainReport:
  """The report of a node that is in no region."""
  why = node.rejection
  return ExplainReport(
    schema=SCHEMA,
    input=source,
    target=target,
    seconds=round(seconds, 3),
    region=None,
    borders=[],
    search=None,
    candidates=[],
    refused=[],
    chosen=None,
    reason=why.code if why else None,
    reason_text=why.reason if why else node.says,
    node=_asked(survey, node),
    remedy=remedy(why.code) if why else None,
    link=link(why.code) if why else None,
    dimensions=_dimensions(survey),
  )


def _asked(survey: Survey, node: NodeAnswer) -> AskedReport:
  weights = survey.program.weights

  def shown(tensors: Iterable[Tensor]) -> list[TensorReport]:
    return [
      TensorReport(
        name=t.name, dtype=str(t.dtype or "unknown"), shape=list(t.shape or ()), weight=t.name in weights
      )
      for t in tensors
    ]  # fmt: skip

  why = node.rejection
  return AskedReport(
    name=node.name,
    op=node.op,
    place=node.place.value,
    ort_us=None if node.ort_us is None else _us(node.ort_us),
    inputs=shown(node.inputs),
    outputs=shown(node.outputs),
    reason=why.code if why else None,
    reason_text=why.reason if why else node.says or None,
  )


def explain_report(
  survey: Survey,
  found: Explanation,
  node: NodeAnswer | None = None,
  *,
  source: str | None,
  target: str,
  seconds: float,
) -> ExplainReport:
  """The report of an explanation; ``node``: the one that was asked about."""
  report, why = found.result.report, found.rejection
  return ExplainReport(
    schema=SCHEMA,
    input=source,
    target=target,
    seconds=round(seconds, 3),
    region=_offer(survey, found.offer, found.instance),
    borders=[
      BorderReport(
        tensor=b.tensor, side="input" if b.is_input else "output", node=b.node,
        op=survey.op_type[b.node] if b.node else None,
        reason=b.rejection.code, reason_text=b.rejection.reason,
      )
      for b in found.borders
    ],
    search=SearchedReport(
      seconds=round(report.seconds, 3), states=report.states, built=report.built,
      verified=report.verified, stop=str(report.stop), pruned=dict(report.pruned),
    ),
    candidates=_candidates(found),
    refused=[
      RefusalReport(reason=code, reason_text=text, count=count)
      for (code, text), count in found.refusals.items()
    ],
    chosen=_chosen(found),
    reason=why.code if why else None,
    reason_text=why.reason if why else None,
    node=_asked(survey, node) if node else None,
    remedy=remedy(why.code) if why else None,
    link=link(why.code) if why else None,
    dimensions=_dimensions(survey),
  )  # fmt: skip


def _candidates(found: Explanation) -> list[CandidateReport]:
  rows = []
  for i, v in enumerate(found.result.candidates):
    refusal = found.refused[i] if i < len(found.refused) else None
    rows.append(_candidate(v.candidate, refusal, is_chosen=i == found.chosen))
  return rows


def _candidate(c: Candidate, refusal: Rejection | None, *, is_chosen: bool) -> CandidateReport:
  return CandidateReport(
    predicted_us=_us(c.predicted_us),
    kernels=len(c.ugraph.kernels),
    params=[p.to_text() for p in c.params],
    status="refused" if refusal else "chosen" if is_chosen else "slower",
    reason=refusal.code if refusal else None,
    reason_text=refusal.reason if refusal else None,
  )


def _chosen(found: Explanation) -> ChosenReport | None:
  proof, compiled = found.proof, found.compiled
  if proof is None or compiled is None:
    return None
  region = found.instance.region
  candidate, extents = compiled.candidate, region.extents
  names = {x.name: x.source.name for x in (*region.given, *region.outputs)}
  numeric = found.safety.numeric if found.safety else None
  return ChosenReport(
    predicted_us=_us(candidate.predicted_us),
    ugraph=print_ugraph(candidate.ugraph),
    dot=to_dot(candidate.ugraph, candidate.params, names),
    svg=to_svg(candidate.ugraph, candidate.params, extents, names),
    cuda="\n".join(s.text for s in compiled.sources),
    kernels=[
      KernelReport(
        name=s.name, grid=list(s.grid_at(extents)), threads=s.block, cluster=s.cluster,
        registers=c.registers, smem_bytes=s.smem_bytes + c.smem_bytes,
      )
      for s, c in zip(compiled.sources, compiled.cubins, strict=True)
    ],
    proof=ProofReport(
      tier=str(proof.tier), draws=proof.draws, bound=proof.bound,
      instantiation=proof.instantiation.splitlines(),
    ),
    numeric=NumericReport(
      candidate=numeric.candidate, original=numeric.original, case=numeric.case,
      rows=numeric.rows,
    ) if numeric else None,
  )  # fmt: skip


def _us(value: float) -> float:
  return round(value, 3)
