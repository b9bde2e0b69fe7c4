"""What the verifier says of mutants, beside what they compute."""

import time
from collections import Counter
from dataclasses import dataclass, field

from mutant_oracle import difference, scenes
from mutations import mutants

from mirage_onnx.errors import Rejection
from mirage_onnx.ir.spec import check_interface, check_ugraph
from mirage_onnx.ir.ugraph import UGraph
from mirage_onnx.verify.equivalence import verify
from mirage_onnx.verify.shift import check_shift

#: Who rejected a mutant; ``accepted`` if nobody did.
STAGES = ("ill-formed", "random test", "shift check", "accepted")


@dataclass(frozen=True)
class Judged:
  """``differs``: how the mutant differs from its region in float64, or None. ``verdict_ms``: CPU
  time of the verdict.
  """

  golden: str
  kind: str
  mutant: UGraph
  stage: str
  reason: str
  differs: str | None
  verdict_ms: float

  @property
  def is_wrongly_accepted(self):
    return self.differs is not None and self.stage == "accepted"

  @property
  def is_refused_equivalent(self):
    return self.differs is None and self.stage != "accepted"


def verdict(golden, graph):
  proof = verify(golden.region, graph)
  refused = check_ugraph(graph) or check_interface(golden.region, graph)
  if refused is not None:
    assert isinstance(proof, Rejection), "the verifier accepts an ill-formed graph"
    return "ill-formed", refused.reason
  if isinstance(proof, Rejection):
    return "random test", str(proof)
  shift = check_shift(golden.region, graph)
  if isinstance(shift, Rejection):
    return "shift check", str(shift)
  return "accepted", ""


def judged(golden, *, every=1, first=0):
  """Mutants number ``first``, ``first + every``, ... of a golden, judged."""
  stages = scenes(golden)
  for scene in stages:
    assert difference(golden.ugraph, scene) is None, f"{golden.name} is wrong"
  for kind, mutant in mutants(golden.ugraph)[first::every]:
    start = time.process_time()
    stage, reason = verdict(golden, mutant)
    took = 1e3 * (time.process_time() - start)
    differs = "ill-formed"
    if stage != "ill-formed":
      found = (difference(mutant, scene) for scene in stages)
      differs = next((d for d in found if d is not None), None)
    yield Judged(golden.name, kind, mutant, stage, reason, differs, took)


@dataclass
class Tally:
  stages: dict[str, Counter[str]] = field(default_factory=dict)
  wrongly_accepted: list[Judged] = field(default_factory=list)
  refused_equivalents: list[Judged] = field(default_factory=list)
  #: CPU time of the verdicts on well-formed mutants.
  verdict_ms: list[float] = field(default_factory=list)

  def add(self, items):
    for j in items:
      self.stages.setdefault(j.kind, Counter())[j.stage] += 1
      if j.stage != "ill-formed":
        self.verdict_ms.append(j.verdict_ms)
      if j.is_wrongly_accepted:
        self.wrongly_accepted.append(j)
      if j.is_refused_equivalent:
        self.refused_equivalents.append(j)
    return self

  @property
  def total(self):
    return sum(sum(c.values()) for c in self.stages.values())

  def table(self):
    lines = [f"{'kind':24}{'mutants':>9}" + "".join(f"{s:>14}" for s in STAGES)]
    rows = [*self.stages.items(), ("total", sum(self.stages.values(), Counter()))]
    for kind, counts in rows:
      numbers = "".join(f"{counts[s]:14}" for s in STAGES)
      lines.append(f"{kind:24}{sum(counts.values()):9}{numbers}")
    return "\n".join(lines)
