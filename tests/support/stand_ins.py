"""What tests hand to the product in place of what a search or a compiler makes: objects of its own classes.

A name that a class has no more, or one field more, is an error of mypy here (``make lint``) and of every
test that asks for one; what a class computes of its fields (``reads``, ``price_us``) it computes here, too.
``tests/test_repository.py`` holds that no test puts a bare namespace in the place of one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mirage_onnx.compiler.candidates import Compiled
from mirage_onnx.errors import Rejection
from mirage_onnx.ir.dtype import DType
from mirage_onnx.ir.program import Tensor
from mirage_onnx.ir.region import Monomial, Region, RegionTensor
from mirage_onnx.ir.ugraph import Candidate, KernelParams, UGraph
from mirage_onnx.match.candidates import RegionCandidate
from mirage_onnx.superopt.result import SearchReport, SearchResult, Stop, Verified
from mirage_onnx.tune.outcome import Outcome
from mirage_onnx.verify.tiers import Proof

#: The classes that are made here.
CLASSES = (Region, RegionCandidate, Candidate, Verified, SearchReport, SearchResult, Compiled, Outcome, Proof)

NO_KERNELS = UGraph((), ())


@dataclass(frozen=True)
class NamedRegion(Region):
  """A region whose key is said."""

  named: str = ""

  @property
  def key(self) -> str:  # type: ignore[override]
    """In place of the digest of its text."""
    return self.named


def region(
  key: str = "",
  nodes: Iterable[str] = (),
  *,
  reads: Iterable[str] = (),
  outputs: Iterable[RegionTensor] = (),
  extents: Mapping[str, int] | None = None,
  runtime: Mapping[str, Monomial] | None = None,
) -> NamedRegion:
  """A region without steps; ``reads``: tensors of the model, of which no axis is known."""
  inputs = tuple(RegionTensor(f"i{n}", DType.F16, (), Tensor(x, DType.F16, ())) for n, x in enumerate(reads))
  return NamedRegion(
    tuple(nodes), (), {}, inputs, tuple(outputs), (), extents or {}, runtime or {}, named=key
  )


def place(nodes: Iterable[str], outputs: Iterable[str] = (), reads: Iterable[str] = ()) -> RegionCandidate:
  """What of a program a region covers."""
  covered = frozenset(nodes)
  return RegionCandidate(region(nodes=sorted(covered), reads=reads), covered, frozenset(outputs))


def candidate(predicted_us: float, params: tuple[KernelParams, ...] = ()) -> Candidate:
  """A program that nobody reads: only its predicted time, or its numbers."""
  return Candidate(NO_KERNELS, params, predicted_us)


def verified(predicted_us: float) -> Verified:
  """The same with a proof."""
  return Verified(candidate(predicted_us), Proof(3, 0.0, ""))


def report(seconds: float = 0.0, states: int = 1, stop: Stop = Stop.EXHAUSTED) -> SearchReport:
  """Of a search that has seen so much."""
  return SearchReport(seconds, states, 0, 0, stop, (), ())


def found(*predicted_us: float, seconds: float = 0.0, refused: tuple[Rejection, ...] = ()) -> SearchResult:
  """A search's result with programs of these predicted times."""
  said = SearchReport(seconds, 1, 0, len(predicted_us), Stop.EXHAUSTED, (), refused)
  return SearchResult(tuple(map(verified, predicted_us)), said)


def compiled(of: Candidate) -> Compiled:
  """Without a text or an image."""
  return Compiled(of, (), ())


def priced(predicted_us: float, nodes: Iterable[str] = ()) -> Outcome:
  """A region whose kernels are predicted to take so long."""
  return Outcome(region(nodes=nodes), (), 0.0, found(predicted_us))
