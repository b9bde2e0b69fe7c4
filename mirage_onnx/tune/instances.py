"""Every instance of a region with its own steps and weights: which of them may be replaced?

Regions with one key are searched once. What is proven of the kernels holds for all of them, but not
how they round and where they overflow: that depends on the weights, and on the types in which ONNX
computes, which the key does not have. So the instances that are chosen are asked one by one, or all at
once where that is as good (``verify/twins.py``); one that fails is left as it was, with the reason.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from mirage_onnx.errors import Rejection
from mirage_onnx.match.candidates import Candidate
from mirage_onnx.tune.outcome import Outcome

#: One chosen instance of a region.
Chosen = tuple[Candidate, Outcome]


def without(outcome: Outcome, refused: Sequence[tuple[Candidate, Rejection]]) -> Outcome:
  """``outcome`` with these instances left alone; it is refused where none is left."""
  gone = {id(c) for c, _ in refused}
  rest = tuple(c for c in outcome.instances if id(c) not in gone)
  if not rest:
    return replace(outcome, compiled=None, measured=None, rejection=refused[0][1])
  return replace(outcome, region=rest[0].region, instances=rest, left_alone=(*outcome.left_alone, *refused))


def with_right_terms(outcome: Outcome, check: Callable[..., Rejection | None]) -> Outcome:
  """``outcome`` without the instances whose terms are not what their steps compute."""
  found = [(c, check(c.region)) for c in outcome.instances]
  wrong = [(c, r) for c, r in found if r is not None]
  return without(outcome, wrong) if wrong else outcome
