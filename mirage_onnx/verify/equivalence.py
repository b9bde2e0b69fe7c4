"""Does a µGraph compute what its region says? Random tests with a stated error bound.

Both run on the same residues at reduced instantiations (``reduced``), by the laws of a tier
(``tiers``); a wrong program is accepted with probability at most ``Proof.bound`` (``bounds``).
"""

from dataclasses import dataclass

import numpy as np

from mirage_onnx.errors import Rejection, RejectionError
from mirage_onnx.ir import Region, UGraph, as_input
from mirage_onnx.ir.spec import check_interface, check_ugraph
from mirage_onnx.verify.domain import Float64
from mirage_onnx.verify.interpret_steps import by_axes, interpret_steps, positional
from mirage_onnx.verify.interpret_term import interpret_terms
from mirage_onnx.verify.named import NamedArray
from mirage_onnx.verify.random_test import Difference, whole
from mirage_onnx.verify.reals import check_reals
from mirage_onnx.verify.reduced import small_extents
from mirage_onnx.verify.repeated_maxima import without_repeats
from mirage_onnx.verify.tiers import Case, Proof, functions, tiers

__all__ = ["Proof", "Refutation", "check_terms", "decide", "verify", "without_bound"]

#: Terms and steps are the same mathematics in float64, in another order.
TERM_TOLERANCE = 1e-9
#: Relative to the largest value of the steps: below this, a result is rounding noise.
ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class Refutation:
  """Why a µGraph is rejected; ``difference`` where tier 1 found one."""

  rejection: Rejection
  difference: Difference | None = None


def verify(
  region: Region, graph: UGraph, *, seed: int = 0, accept_heuristic: bool = False
) -> Proof | Rejection:
  """A proof that ``graph`` computes the terms of ``region``, or why there is none.

  ``accept_heuristic``: also a proof without a bound (``Proof.heuristic``).
  """
  found = decide(region, graph, seed=seed)
  if isinstance(found, Refutation):
    return found.rejection
  return without_bound(found) if found.heuristic and not accept_heuristic else found


def without_bound(proof: Proof) -> Rejection:
  """Why a heuristic proof is none by default."""
  reason = (
    f"equal in {proof.draws} draws, but by the laws of tier {proof.tier}, where no number of "
    "draws bounds the chance of an error here; verify(accept_heuristic=True) takes it"
  )
  return Rejection("INCONCLUSIVE", reason)


def decide(region: Region, graph: UGraph, *, seed: int = 0) -> Proof | Refutation:
  """The first proof that a tier gives; else what the first tier has against the program.

  Its reason is followed by those of later tiers that could not decide.
  """
  refused = check_ugraph(graph) or check_interface(region, graph)
  if refused:
    return Refutation(refused)
  found = _by_tiers(Case(region, graph, seed))
  plain = without_repeats(graph)
  if isinstance(found, Refutation) and plain is not graph:
    equal = _by_tiers(Case(region, plain, seed))
    return equal if isinstance(equal, Proof) else found
  return found


def _by_tiers(case: Case) -> Proof | Refutation:
  heads = functions(case.region, case.graph)
  first: Refutation | None = None
  more: list[str] = []
  for tier in tiers(heads):
    try:
      found = tier(case, heads)
    except RejectionError as e:
      found = e.rejection
    except ValueError as e:
      found = Rejection("NOT_EQUIVALENT", f"ill-formed: {e}")
    if isinstance(found, Proof):
      refused = check_reals(case.region, case.graph, case.instantiations[0], case.generator(3))
      return Refutation(refused) if refused else found
    if isinstance(found, Difference):
      first = first or Refutation(Rejection("NOT_EQUIVALENT", found.reason), found)
    elif first is None:
      # What cannot be run, or not be decided, is not for the next tier either.
      return Refutation(found)
    else:
      more.append(found.reason)
  assert first is not None
  reason = "; ".join([first.rejection.reason, *more])
  return Refutation(Rejection(first.rejection.code, reason), first.difference)


def check_terms(region: Region, rng: np.random.Generator) -> Rejection | None:
  """None if the terms of a region compute its steps, in float64 at small different extents."""
  try:
    extents = small_extents(region.extents)
    seen = set[str]()
    for positive in (False, True):
      inputs = {}
      for i in region.inputs:
        data = rng.standard_normal([extents[a] for a in i.axes])
        data = abs(data) + 0.5 if positive and i.dtype.is_float else data
        inputs[i.name] = as_input(data, i.dtype)
      arrays = {i.tensor.name: positional(i, inputs[i.name]) for i in region.inputs}
      want = interpret_steps(region, arrays, rounded=False, extents=extents)
      largest = max(float(np.abs(v[np.isfinite(v)]).max(initial=0.0)) for v in want.values())
      named = {i.name: NamedArray(inputs[i.name][None], i.axes) for i in region.inputs}
      got = interpret_terms(Float64(), region.terms, named, extents)
      for output, value in zip(region.outputs, got, strict=True):
        x = by_axes(output, want[output.tensor.name], extents)
        y = whole(value, output, extents)[0]
        defined = np.isfinite(x)
        if not defined.all() and not positive:
          continue
        seen.add(output.name)
        # Where everything cancels (the mean of x - mean(x)), what is left of the steps is
        # float64's own rounding of their largest value.
        rounding = ROUNDING * largest * np.sqrt(x.size)
        # Squares of values of an exp of an exp would overflow: in units of the largest.
        unit = max(float(np.abs(x[defined]).max(initial=0.0)), 1e-300)
        norm = max(float(np.linalg.norm(x[defined] / unit)), float(rounding) / unit)
        with np.errstate(over="ignore"):  # as far off as that it is another one
          error = float(np.linalg.norm((x[defined] - y[defined]) / unit)) / max(norm, 1e-300)
        if not error < TERM_TOLERANCE:
          reason = f"the terms of {output.name} differ from its steps by {error:.1e}"
          return Rejection("NOT_EQUIVALENT", reason, region.nodes)
        if not defined.any():
          reason = f"the steps of {output.name} have no finite value"
          return Rejection("INCONCLUSIVE", reason, region.nodes)
  except RejectionError as e:
    return e.rejection
  except (ValueError, KeyError) as e:
    return Rejection("NOT_EQUIVALENT", f"the steps cannot be run: {e}", region.nodes)
  return None
