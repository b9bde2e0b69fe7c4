"""One region: its first programs compiled, timed, and then other numbers of the fastest of them."""

from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from math import prod

from mirage_onnx import deadline
from mirage_onnx.compiler.candidates import Compiled, compile_candidates
from mirage_onnx.compiler.compile_processes import apart
from mirage_onnx.cores import available_cores
from mirage_onnx.deadline import Ends
from mirage_onnx.errors import Rejection
from mirage_onnx.importer import LoadedModel
from mirage_onnx.instructions import WGMMA
from mirage_onnx.ir import Candidate as IrCandidate
from mirage_onnx.ir import KernelParams, Region
from mirage_onnx.superopt.timed_numbers import by_warpgroups
from mirage_onnx.target import Target
from mirage_onnx.tune.ahead import WARPGROUPS, Ahead, first_kernels
from mirage_onnx.tune.dynamic import Dynamic
from mirage_onnx.tune.measure import measure_region
from mirage_onnx.tune.outcome import Outcome
from mirage_onnx.tune.refine import other_numbers
from mirage_onnx.verify.weights import ModelWeights

#: Where the fastest program has a tiled kernel, so many times as many of its numbers are tried in
#: the second look, and in all.
MORE, MOST = 3, 10
#: Elements of the largest tensor of a measurement at other sizes; its check is in float64.
MOST_MEASURED = 1 << 24
#: Whether a program ran, and why it is refused if it does not do what the region does.
Look = Callable[[Region, IrCandidate], tuple[str, Rejection | None]]


def tuned(
  loaded: LoadedModel,
  outcome: Outcome,
  target: Target,
  *,
  measure: bool,
  tries: int,
  ends: Ends,
  look: Look | None,
  ahead: Ahead | None = None,
  weights: ModelWeights | None = None,
) -> Outcome:
  """``outcome`` with the best of its programs compiled (and timed), or why there is none.

  ``tries``: candidates that are compiled and timed at first. ``ends``: when no more are. ``ahead``: what
  was made ready. ``look``: as of ``realise``; ``weights``: of the model, with what is known of them.
  """
  region = outcome.region
  keep, workers = (tries, available_cores()) if measure else (1, 1)
  ready = (
    ahead.take(outcome) if ahead else first_kernels(outcome, target, tries, keep, workers, measured=measure)
  )
  candidates, compiled, refused = ready.candidates, ready.compiled, ready.refused
  if not compiled:
    # One that there was no time for may have been right where others spill.
    late = (r for r in refused if r.code == "BUDGET")
    return replace(outcome, rejection=next(late, refused[0]))
  if not measure:
    return _looked_at(outcome, compiled[0], candidates, target, look)

  looked, asked = set[tuple[KernelParams, ...]](), [c.candidate for c in compiled]

  def more(best: Compiled, tried: Sequence[Compiled]) -> Sequence[Compiled]:
    # First numbers of every kind, then the neighbours of each that turns out the fastest.
    near = len(tried) > len(compiled)
    at, left = best.candidate.params, MOST * tries - len(tried)
    if left <= 0 or at in looked or ends.over:
      return ()
    looked.update([at] if near else [])
    count = min(left, 2 * tries if near else MORE * tries)
    # What the compiler refused is not asked again either.
    known = {c.params for c in asked if c.ugraph == best.candidate.ugraph} if near else None
    others = _others(region, best.candidate, target, count, asked, known)
    asked.extend(others)
    with deadline.until(ends.at):
      return compile_candidates(region, others, target, keep=count, workers=workers)[0]

  best, measured = measure_region(
    loaded, region, compiled, target, more, lambda: ahead.draws(outcome) if ahead else None, weights
  )
  if isinstance(measured, Rejection):
    return replace(outcome, rejection=measured)
  return replace(outcome, compiled=best, measured=measured)


def second_numbers(outcome: Outcome, best: Compiled, target: Target, tries: int) -> tuple[IrCandidate, ...]:
  """What ``tuned`` looks at after its first programs if ``best`` is the fastest of them."""
  return _others(outcome.region, best.candidate, target, MORE * tries, [best.candidate])


def _others(
  region: Region,
  best: IrCandidate,
  target: Target,
  count: int,
  asked: Sequence[IrCandidate],
  known: Container[tuple[KernelParams, ...]] | None = None,
) -> tuple[IrCandidate, ...]:
  """More numbers of ``best``, for the instruction that it has. ``known``: as of ``other_numbers``."""
  if WGMMA.name in {p.instruction for p in best.params}:
    own = apart(by_warpgroups, region, best, target, min(count, MORE * WARPGROUPS))
    return tuple(c for c in own if c.params not in {a.params for a in asked})
  return apart(other_numbers, region, best, target, count, known)


def _looked_at(
  outcome: Outcome, best: Compiled, candidates: Sequence[IrCandidate], target: Target, look: Look | None
) -> Outcome:
  """``outcome`` with the first program that compiles and that ``look`` does not refuse."""
  region = outcome.region
  while look is not None:
    ran, wrong = look(region, best.candidate)
    if wrong is None:
      return replace(outcome, compiled=best, ran=ran)
    candidates = candidates[candidates.index(best.candidate) + 1 :]
    others = compile_candidates(region, candidates, target, keep=1)[0]
    if not others:
      return replace(outcome, rejection=wrong)
    best = others[0]
  return replace(outcome, compiled=best)


def elsewhere(
  loaded: LoadedModel, outcome: Outcome, best: Compiled, dynamic: Dynamic, target: Target
) -> Outcome:
  """``outcome``, refused where its kernels are wrong or slower at other sizes of a run."""
  for region in dynamic.sized(outcome.region)[1:]:
    shapes = [region.shape(t.source) for t in (*region.inputs, *region.outputs)]
    if max(map(prod, shapes)) > MOST_MEASURED:
      continue
    _, measured = measure_region(loaded, region, [best], target)
    if isinstance(measured, Rejection):
      at = " ".join(f"{name}={size}" for name, size in region.symbols.items())
      reason = f"at {at}: {measured.reason}"
      refusal = Rejection(measured.code, reason, measured.nodes)
      return replace(outcome, compiled=None, measured=None, rejection=refusal)
  return outcome
