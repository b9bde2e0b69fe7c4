"""Everything about one region: its borders, its search, and the µGraph that came out with its CUDA.

Only this region is searched; whether ``optimize`` replaces it also depends on its neighbours.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from mirage_onnx.compiler.candidates import Compiled, compile_candidates
from mirage_onnx.errors import MirageError, Rejection
from mirage_onnx.importer import LoadedModel
from mirage_onnx.inspection.growth import Border, borders
from mirage_onnx.inspection.survey import Offer, Survey
from mirage_onnx.match.candidates import RegionCandidate
from mirage_onnx.pipeline import Options
from mirage_onnx.searching import search_region
from mirage_onnx.superopt.result import SearchResult
from mirage_onnx.tune.outcome import Outcome
from mirage_onnx.tune.predict import refuse_result
from mirage_onnx.verify.equivalence import Proof
from mirage_onnx.verify.safety import SafetyCheck, SafetyRecord
from mirage_onnx.verify.weights import sample_weights

#: Fewest letters of a region key that stand for it.
KEY_PREFIX = 4
#: Region keys that an error lists.
LISTED = 8


@dataclass(frozen=True, slots=True)
class Explanation:
  """What is known of ``instance`` of ``offer``.

  ``refused``: why the first candidates of ``result`` could not be compiled; ``compiled`` is the
  one after them, if any, and ``safety`` its record in floating point. ``rejection``: why the
  region would be kept; None where a kernel is predicted to win.
  """

  offer: Offer
  instance: RegionCandidate
  borders: tuple[Border, ...]
  result: SearchResult
  refused: tuple[Rejection, ...]
  compiled: Compiled | None
  safety: SafetyRecord | None
  rejection: Rejection | None

  @property
  def chosen(self) -> int | None:
    """The place of the compiled candidate in ``result``."""
    return len(self.refused) if self.compiled else None

  @property
  def proof(self) -> Proof | None:
    """That of the compiled candidate."""
    if self.chosen is None:
      return None
    found = self.result.candidates[self.chosen].proof
    assert isinstance(found, Proof)
    return found

  @property
  def refusals(self) -> Mapping[tuple[str, str], int]:
    """(code, sentence) -> how often the search refused a program for it."""
    return Counter((r.code, r.reason) for r in self.result.report.refused)


def find_instance(survey: Survey, name: str) -> tuple[Offer, RegionCandidate]:
  """The region of this key (or of the only key that begins so), or the one of this node.

  A node may be in many candidates: that in the partition is meant, else that with the most gain.

  Raises:
      MirageError: REGION_UNKNOWN, with the node's own reason or the regions that there are.
  """
  offers = survey.offers
  if not offers:
    reasons = ", ".join(f"{len(b.nodes)} {b.code}" for b in survey.barriers)
    raise MirageError("REGION_UNKNOWN", f"the model has no region ({reasons or 'no node'})")
  keys = [k for k in offers if k == name or (len(name) >= KEY_PREFIX and k.startswith(name))]
  if len(keys) == 1:
    offer = offers[keys[0]]
    return offer, (offer.chosen or offer.instances)[0]
  holding = [(o, c) for o in offers.values() for c in o.instances if name in c.nodes]
  if holding:
    return max(holding, key=lambda oc: (oc[1] in oc[0].chosen, oc[0].gain_us))
  for rejection in survey.matches.rejections:
    if name in rejection.nodes:
      reason = f"node {name} is in no region: {rejection.code}, {rejection.reason}"
      raise MirageError("REGION_UNKNOWN", reason)
  nodes = [n.name for n in survey.program.nodes]
  if near := get_close_matches(name, [*nodes, *offers], n=3):
    raise MirageError("REGION_UNKNOWN", f"no region or node {name!r}; near it: {', '.join(near)}")
  known = [k for k, o in offers.items() if o.chosen] or list(offers)
  more = f" and {len(known) - LISTED} more" if len(known) > LISTED else ""
  listed = ", ".join(offers[k].region.nodes[0] for k in known[:LISTED])
  raise MirageError("REGION_UNKNOWN", f"no region or node {name!r}; regions begin at {listed}{more}")


def explain_region(loaded: LoadedModel, survey: Survey, name: str, options: Options) -> Explanation:
  """Search the region ``name`` and compile its best candidate.

  Raises:
      MirageError: REGION_UNKNOWN, COMPILER_MISSING.
  """
  offer, instance = find_instance(survey, name)
  region = instance.region
  outcome = Outcome(region, (instance,), offer.ort_us)
  result = search_region(loaded, region, options.target, options.bound, options.budget_s)
  if region.runtime and survey.dynamic:
    outcome = survey.dynamic.judged(outcome, result)
    result = outcome.result or result
  first = [v.candidate for v in result.candidates][: options.tries]
  compiled, refused = compile_candidates(region, first, options.target, keep=1)
  rejection = survey.unpredicted.refusal(region.nodes, options.target) or outcome.rejection
  rejection = rejection or refuse_result(result, offer.ort_us, options.margin, region.nodes)
  safety = None
  if compiled:
    best = compiled[0].candidate
    found = SafetyCheck(region, sample_weights(loaded, region)).check(best.ugraph, best.params)
    safety = found if isinstance(found, SafetyRecord) else None
  elif refused:
    rejection = refused[0]
  return Explanation(
    offer,
    instance,
    tuple(borders(survey, instance)),
    result,
    tuple(refused),
    compiled[0] if compiled else None,
    safety,
    rejection,
  )
