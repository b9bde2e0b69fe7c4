"""What the search asks about a candidate: is it equal to the region, and safe in floating point?

Before the first one: do the terms of the region, which candidates are compared with, say what its
ONNX steps compute (``term_checks.py``)?
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from mirage_onnx.errors import Rejection, RejectionError
from mirage_onnx.ir import KernelParams, Region, UGraph
from mirage_onnx.verify.equivalence import Proof, verify
from mirage_onnx.verify.range_check import RangeCheck
from mirage_onnx.verify.rescale import rescaled
from mirage_onnx.verify.safety import SafetyCheck
from mirage_onnx.verify.samples import Part
from mirage_onnx.verify.term_checks import TermChecks

Prove = Callable[[Region, UGraph, tuple[KernelParams, ...]], Proof | Rejection]


def prover(
  region: Region,
  weights: Mapping[str, np.ndarray] | None = None,
  *,
  derived: bool = False,
  twins: Sequence[Part] = (),
) -> Prove:
  """The full check of candidates for ``region``; what is known of it is worked out once.

  ``weights``: ONNX tensor name -> its real values. ``derived``: axioms made the candidates, so
  that many of them are unsafe and none is wrong: the cheap checks come before the proof. ``twins``:
  other instances, with their weights. What may overflow with the weights of some has a proof that is
  ``partial``, and how it rounds is left to the check of the instances that are chosen. Where factors
  keep a program from that (``rescale.py``), the proof is of the program with them.
  """
  safety, terms = SafetyCheck(region, weights), TermChecks()
  others = [RangeCheck(r, w) for r, w in twins]

  def prove(r: Region, g: UGraph, p: tuple[KernelParams, ...]) -> Proof | Rejection:
    if wrong := terms(region):
      return wrong
    partial, given = False, g
    with suppress(RejectionError, ValueError):  # of what is ill-formed the proof says it
      if derived:
        unsafe, g = _unsafe(safety, others, g)
        if unsafe and (None not in unsafe or (unsafe[0] is not None and unsafe[0].code != "RANGE")):
          return next(u for u in unsafe if u is not None)
        partial = any(unsafe)
    proof = verify(r, g)
    if isinstance(proof, Rejection):
      return proof
    proof = replace(proof, partial=partial, graph=None if g is given else g)
    found = None if partial else safety.check(g, p)
    return found if isinstance(found, Rejection) else proof

  return prove


def structure_prover(region: Region, weights: Mapping[str, np.ndarray] | None = None) -> Prove:
  """The check without rounding, which depends on the sizes: for candidates of a structure."""
  safety, terms = SafetyCheck(region, weights), TermChecks()

  def prove(r: Region, g: UGraph, p: tuple[KernelParams, ...]) -> Proof | Rejection:
    if wrong := terms(region):
      return wrong
    proof = verify(r, g)
    if isinstance(proof, Rejection):
      return proof
    unsafe, _ = _unsafe(safety, (), g)
    return unsafe[0] or proof

  return prove


def _unsafe(
  safety: SafetyCheck, others: Sequence[RangeCheck], graph: UGraph
) -> tuple[list[Rejection | None], UGraph]:
  """Why a program is unsafe for the region and for each of the others; with factors, where they help."""

  def found(g: UGraph) -> list[Rejection | None]:
    ranges = [c.check(g) for c in others]
    return [safety.check_any_numbers(g), *(r if isinstance(r, Rejection) else None for r in ranges)]

  unsafe = found(graph)
  if any(u and u.code == "RANGE" for u in unsafe):
    scaled = rescaled(graph, [safety.ranges, *others])
    if scaled is not None and not any(again := found(scaled)):
      return again, scaled
  return unsafe, graph
