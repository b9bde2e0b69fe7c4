"""Why a node of a model stays with ONNX Runtime: one reason for each, from where it got furthest.

A node that no candidate region covers has the reason of the matcher. Otherwise the candidate that
got furthest speaks for it; among equals the one with the most to gain. Beside the codes of
``mirage_onnx.errors`` there are two that are no refusals (``NOT_REFUSED``).
"""

import re
from collections import defaultdict
from dataclasses import dataclass

#: What is no refusal -> its sentence.
NOT_REFUSED = {
  "NOT_CHOSEN": "a region with it would win, but another choice of regions saves more",
  "STILL_READ": "a region computes it again, and others still read its result",
}
#: Reasons by which the library keeps a node although a kernel could be had.
BY_CHOICE = frozenset({"NOT_FASTER", "NOT_CHOSEN", "STILL_READ", "TOO_SMALL"})

_NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w.]*\w)")
_QUOTED = re.compile(r"'[^']*'")


@dataclass(frozen=True, slots=True, order=True)
class Reason:
  """``sentence`` is without the names and numbers of one model, so equal ones can be counted."""

  code: str
  sentence: str


def reasons(run, covered):
  """Node -> why it is not replaced; ``covered``: nodes inside replaced regions."""
  outcomes = defaultdict(list)
  for o in run.outcomes.values():
    for candidate in o.instances:
      for name in candidate.nodes:
        outcomes[name].append(o)
  matcher = {n: r for r in run.matches.rejections for n in r.nodes}
  names = _names(run.program)
  found = {}
  for node in run.program.nodes:
    if node.name in covered:
      found[node.name] = _not_refused("STILL_READ")
    elif node.name in matcher:
      refusal = matcher[node.name]
      found[node.name] = Reason(refusal.code, general(refusal.reason, names))
    elif outcomes[node.name]:
      best = max(outcomes[node.name], key=_progress)
      found[node.name] = _of_outcome(best, names)
  return found


def _progress(o):
  """How far a region got (unsearched, searched, with a kernel, good), and its gain in us."""
  if o.rejection is None:
    stage = 3
  elif o.result is not None and o.result.candidates:
    stage = 2
  else:
    stage = 0 if o.result is None else 1
  best = o.result.candidates[0].candidate.predicted_us if stage > 1 and o.result else 0.0
  return stage, o.baseline_us - best


def _of_outcome(o, names):
  if o.rejection is None:
    return _not_refused("NOT_CHOSEN")
  return Reason(o.rejection.code, general(o.rejection.reason, names))


def _not_refused(code):
  return Reason(code, NOT_REFUSED[code])


def _names(program):
  return frozenset(n.name for n in program.nodes) | frozenset(program.tensors)


def general(sentence, names):
  """``sentence`` with ``_`` for what is quoted or a name, and ``N`` for every number.

  Exporters call a tensor ``add_3`` or ``/attn/Mul``; a name that is a plain word stays.
  """
  known = frozenset(n for n in names if not n.isalpha())
  words = _QUOTED.sub("_", sentence).split()
  kept = ("_" if w.strip(",;:.()") in known else w for w in words)
  return _NUMBER.sub("N", " ".join(kept))
