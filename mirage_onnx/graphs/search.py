"""The search of a kernel graph: restrictions, the verifier and the checkpoint around it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mirage_onnx.cores import available_cores
from mirage_onnx.errors import MirageError, Rejection, RejectionError
from mirage_onnx.graphs.kernel_check import KernelFilter, keeps_to
from mirage_onnx.graphs.optimized import OptimizedGraph
from mirage_onnx.graphs.restriction import Restriction
from mirage_onnx.ir import Candidate, KernelParams, Program, Region, parse_ugraph
from mirage_onnx.match.whole import whole_region
from mirage_onnx.superopt.checkpoint import load_candidates, save_candidates
from mirage_onnx.superopt.result import SearchReport, Stop, Verified, Verify, default_bound
from mirage_onnx.superopt.search import search
from mirage_onnx.superopt.space import ALL
from mirage_onnx.target import Target
from mirage_onnx.verify.prover import prover

#: What a search takes of a large machine unasked: what more can begin is seldom needed.
MOST_WORKERS = 8


@dataclass(frozen=True, slots=True)
class Request:
  """What a search is asked for.

  ``max_ops``: the bound of heavy operations per kernel. ``workers``: processes; None: one per
  core, up to ``MOST_WORKERS``.
  """

  target: Target
  restriction: Restriction
  budget_s: float
  max_ops: int | None = None
  workers: int | None = None
  checkpoint: Path | None = None


def search_graph(program: Program, request: Request) -> tuple[OptimizedGraph, ...]:
  """Verified µGraphs of the program, cheapest predicted first; at least one.

  Where the checkpoint holds µGraphs of this program that verify and keep to the restriction,
  these are the answer and nothing is searched.

  Raises:
      MirageError: OPTION_INVALID (no program keeps to the restriction), CHECKPOINT.
      RejectionError: NO_CANDIDATE, or why the program has no region (AXES_CONFLICT, OP_FORM).
  """
  region = whole_region(program)
  prove = prover(region, derived=True)
  found = _from_checkpoint(region, request, prove)
  if not found:
    found = _searched(region, request, prove)
    if request.checkpoint is not None:
      new = [v.candidate for v in found]
      old = [c for c in load_candidates(request.checkpoint, region) if c not in new]
      save_candidates(request.checkpoint, region, [*new, *old])
  return tuple(OptimizedGraph(program, region, v.candidate, v.proof, request.target) for v in found)


def read_graph(program: Program, text: str, numbers: Sequence[str], target: Target) -> OptimizedGraph:
  """A µGraph that somebody claims for the program, from its text and numbers, verified.

  Raises:
      ValueError: not the text of a µGraph, or not the numbers of its kernels.
      RejectionError: it is refused, or the program has no region.
  """
  params = tuple(KernelParams.from_text(n) for n in numbers)
  candidate = Candidate(parse_ugraph(text), params)
  if len(params) != len(candidate.ugraph.kernels):
    raise ValueError(f"{len(params)} numbers for {len(candidate.ugraph.kernels)} kernels")
  region = whole_region(program)
  proof = prover(region)(region, candidate.ugraph, candidate.params)
  if isinstance(proof, Rejection):
    raise RejectionError(proof.code, proof.reason, proof.nodes)
  return OptimizedGraph(program, region, candidate, proof, target)


def _searched(region: Region, request: Request, prove: Verify) -> Sequence[Verified]:
  restriction = request.restriction
  bound = default_bound(ALL)
  if request.max_ops is not None:
    bound = replace(bound, operators=request.max_ops)
  allow = KernelFilter(restriction, region) if restriction else None
  result = search(
    region, request.target, prove,
    bound=bound, space=ALL, budget_s=request.budget_s, allow=allow,
    workers=request.workers or min(available_cores(), MOST_WORKERS),
  )  # fmt: skip
  found = [v for v in result.candidates if keeps_to(restriction, region, v.candidate)]
  if found:
    return found
  end = _how_it_ended(result.report, request.budget_s)
  if restriction:
    raise MirageError("OPTION_INVALID", f"no program found keeps to {restriction} ({end})")
  refused = result.report.refused
  why = f"{end}; first refusal: {refused[0]}" if refused else end
  raise RejectionError("NO_CANDIDATE", f"no program found: {why}", region.nodes)


def _how_it_ended(report: SearchReport, budget_s: float) -> str:
  limit = f" of {budget_s:g} s" if report.stop is Stop.BUDGET else ""
  return f"the search ended by {report.stop}{limit} after {report.built} kernels"


def _from_checkpoint(region: Region, request: Request, prove: Verify) -> Sequence[Verified]:
  if request.checkpoint is None:
    return ()
  found = []
  for candidate in load_candidates(request.checkpoint, region):
    if keeps_to(request.restriction, region, candidate):
      proof = prove(region, candidate.ugraph, candidate.params)
      if not isinstance(proof, Rejection):
        found.append(Verified(candidate, proof))
  return sorted(found, key=lambda v: v.candidate.predicted_us)
