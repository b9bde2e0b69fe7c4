"""Verdicts: what the verifier says of a µGraph, for people and programs outside of it."""

from dataclasses import dataclass

from mirage_onnx.errors import Rejection
from mirage_onnx.ir import Region, UGraph
from mirage_onnx.verify.counterexample import Counterexample, counterexample
from mirage_onnx.verify.equivalence import Proof, decide, without_bound


@dataclass(frozen=True, slots=True)
class Verdict:
  """``accepted`` with its ``proof``, or not with the ``rejection`` that says why.

  A ``proof`` without a bound may come with a rejection (``Proof.heuristic``). A program that
  computes something else has a ``counterexample``; one that is ill-formed has none.
  """

  accepted: bool
  proof: Proof | None = None
  rejection: Rejection | None = None
  counterexample: Counterexample | None = None


def judge(region: Region, graph: UGraph, *, seed: int = 0) -> Verdict:
  """The verdict of ``verify``, with all that is known; a rejection takes longer than there."""
  found = decide(region, graph, seed=seed)
  if isinstance(found, Proof):
    refused = without_bound(found) if found.heuristic else None
    return Verdict(accepted=refused is None, proof=found, rejection=refused)
  if found.difference is None:
    return Verdict(accepted=False, rejection=found.rejection)
  shown = counterexample(region, graph, found.difference)
  reason = found.rejection.reason
  if shown.first is not None:
    reason = f"{reason}; {shown.first.sentence}"
  rejection = Rejection(found.rejection.code, reason, found.rejection.nodes)
  return Verdict(accepted=False, rejection=rejection, counterexample=shown)
