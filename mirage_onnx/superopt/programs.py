"""The programs that a search has had verified, by their texts."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from mirage_onnx.errors import Rejection
from mirage_onnx.ir import Candidate, Region, UGraph, print_ugraph
from mirage_onnx.superopt.plans import KernelPlan, Plans
from mirage_onnx.superopt.reach import with_limits
from mirage_onnx.superopt.result import ProofLike, Verified, Verify, is_partial, proven_graph


@dataclass(frozen=True, slots=True)
class Program:
  """A plan that was proven, as the µGraph that was."""

  plan: KernelPlan
  graph: UGraph
  proof: ProofLike

  @property
  def is_whole(self) -> bool:
    """Whether it is safe for every instance of the region."""
    return not is_partial(self.proof)


class Programs:
  """What became of every program that was ``tried``: None, where it was refused.

  ``early``: texts of those that were proven before their turn, and do not count yet.
  """

  def __init__(self, region: Region, verify: Verify, plans: Plans) -> None:
    self._region, self._verify, self._plans = region, verify, plans
    self.tried: dict[str, Program | None] = {}
    self.early = set[str]()
    self.refused: list[Rejection] = []

  def text(self, plan: KernelPlan) -> str:
    return print_ugraph(self._plans.ugraph(plan))

  @property
  def good(self) -> int:
    """How many are proven for every instance, each in its turn."""
    return sum(p.is_whole for text, p in self.tried.items() if p and text not in self.early)

  def in_turn(self, text: str) -> bool:
    """Take note that it is the turn of a program; whether it was early."""
    was_early = text in self.early
    self.early.discard(text)
    return was_early

  def judged(self, plan: KernelPlan, text: str, *, is_early: bool = False) -> None:
    """Have a program verified that was not tried before."""
    graph = self._plans.ugraph(plan)
    verdict = self._verify(self._region, graph, next(self._plans.numbers(plan))[1])
    if isinstance(verdict, Rejection):
      self.refused.append(verdict)
      self._plans.blame.learn(verdict, tuple(b for _, b in plan.kernels))
      self.tried[text] = None
      return
    self._plans.found = True
    proven = with_limits(self._region, proven_graph(verdict, graph))
    self.tried[text] = Program(plan, proven, verdict)
    if is_early:
      self.early.add(text)

  def timed(self, text: str, plan: KernelPlan) -> None:
    """The same program with other numbers and times of its kernels."""
    program = self.tried[text]
    assert program is not None
    self.tried[text] = replace(program, plan=plan)

  def verified(self, text: str) -> Iterator[Verified]:
    """The program of a text with all its numbers, best first."""
    if program := self.tried[text]:
      for us, params in self._plans.numbers(program.plan):
        yield Verified(Candidate(program.graph, params, us), program.proof)

  @property
  def proven(self) -> list[str]:
    """The texts of the programs that were not refused."""
    return [text for text, program in self.tried.items() if program]

  @property
  def best_us(self) -> float | None:
    """What the best program takes so far."""
    return min((p.plan.cost_us for p in self.tried.values() if p), default=None)
