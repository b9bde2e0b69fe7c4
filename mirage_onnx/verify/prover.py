"""What the search asks about a candidate: is it equal to the region, and safe in floating point?

Before the first one: do the terms of the region, which candidates are compared with, say what its
ONNX steps compute (``term_checks.py``)?
"""

from collections.abc import Callable, Mapping
from contextlib import suppress

import numpy as np

from mirage_onnx.errors import Rejection, RejectionError
from mirage_onnx.ir import KernelParams, Region, UGraph
from mirage_onnx.verify.equivalence import Proof, verify
from mirage_onnx.verify.safety import SafetyCheck
from mirage_onnx.verify.term_checks import TermChecks

Prove = Callable[[Region, UGraph, tuple[KernelParams, ...]], Proof | Rejection]
Check = Callable[[UGraph, tuple[KernelParams, ...]], object]


def prover(
  region: Region, weights: Mapping[str, np.ndarray] | None = None, *, derived: bool = False
) -> Prove:
  """The full check of candidates for ``region``; what is known of it is worked out once.

  ``weights``: ONNX tensor name -> its real values. ``derived``: axioms made the candidates, so
  that many of them are unsafe and none is wrong: the cheap checks come before the proof.
  """
  safety = SafetyCheck(region, weights)
  return _prover(region, safety.check, safety.check_any_numbers if derived else None)


def structure_prover(region: Region, weights: Mapping[str, np.ndarray] | None = None) -> Prove:
  """The check without rounding, which depends on the sizes: for candidates of a structure."""
  safety = SafetyCheck(region, weights)
  return _prover(region, lambda graph, _: safety.check_any_numbers(graph))


def _prover(region: Region, check: Check, first: Callable[[UGraph], Rejection | None] | None = None) -> Prove:
  terms = TermChecks()

  def prove(r: Region, g: UGraph, p: tuple[KernelParams, ...]) -> Proof | Rejection:
    if wrong := terms(region):
      return wrong
    with suppress(RejectionError, ValueError):  # of what is ill-formed the proof says it
      if first and (refused := first(g)):
        return refused
    proof = verify(r, g)
    if isinstance(proof, Rejection):
      return proof
    found = check(g, p)
    return found if isinstance(found, Rejection) else proof

  return prove
