"""Each custom node by itself against the region of the original model that it replaced.

The original runs in stock onnxruntime, with the tensors that regions read as further outputs. These
values are fed to the region's original nodes, cut out and run by stock onnxruntime, and to the
custom node, cut out as well. So an error of one kernel does not reach the next, both sides start
from the same bits (docs/decisions.md, last section), and a wrong kernel shows even where the rest
of the model hides it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import onnx

from mirage_onnx.custom_op.boundary import FED, Boundary, detached_nodes, detached_original, exposed, fed
from mirage_onnx.custom_op.difference import OutputDifference, worse
from mirage_onnx.custom_op.in_double import run_in_double
from mirage_onnx.custom_op.loose_rows import caches, loose_rows, measured
from mirage_onnx.custom_op.measure import KnownOriginal, Measure
from mirage_onnx.custom_op.model_nodes import ModelFile
from mirage_onnx.custom_op.model_run import How, open_session, run_session
from mirage_onnx.custom_op.shaken import NARROW, WIDE, Errors, Shaken
from mirage_onnx.custom_op.steps import EVERYTHING, LeftOut, SessionStep, Tell, tell_nobody
from mirage_onnx.custom_op.widen import has_halves, run_rounded, run_widened
from mirage_onnx.errors import MirageError

if TYPE_CHECKING:
  import onnxruntime as ort


@dataclass(frozen=True, slots=True)
class RegionDifference:
  """One output of one custom node: the worst over the inputs on which it was checked."""

  node: str
  output: OutputDifference


class Worst:
  """The worst that each output of each custom node did, in the order of the first input."""

  def __init__(self) -> None:
    self._found: dict[tuple[str, str], OutputDifference] = {}

  def add(self, node: str, found: OutputDifference) -> None:
    key = node, found.name
    self._found[key] = worse(self._found[key], found) if key in self._found else found

  @property
  def differences(self) -> tuple[RegionDifference, ...]:
    return tuple(RegionDifference(node, found) for (node, _), found in self._found.items())


class RegionCheck:
  """The two models cut at their boundaries, ready to be run on any number of inputs."""

  def __init__(
    self,
    original: ModelFile,
    rewritten: ModelFile,
    cuts: tuple[Boundary, ...],
    reference: How,
    candidate: How,
    *,
    tell: Tell = tell_nobody,
    left_out: LeftOut = EVERYTHING,
  ) -> None:
    """``cuts``: the nodes to check, in topological order.

    Raises:
        MirageError: SHAPES_DIFFER when ``rewritten`` was not made from ``original``.
    """
    self._cuts = tuple(c for c in cuts if c.node not in left_out.nodes)
    self._rewritten, self._candidate = rewritten, candidate
    # With all its optimizations onnxruntime 1.31 and 1.32 die of a Transpose before a MatMul of fp16
    # that nothing follows, as where a region ends.
    self._original, self._reference = original, replace(reference, basic=True)
    self._tell, self._apart = tell, left_out.apart
    tell(SessionStep.VALUES, "")
    self._whole = open_session(exposed(original, cuts), reference, original.external_folder)
    self._pairs: dict[tuple[Boundary, ...], tuple[ort.InferenceSession, ort.InferenceSession]] = {}
    self._caches = {made: FED + given for made, given in caches(original.proto.graph).items()}
    self._failed: dict[str, str] = {}
    self._worst = Worst()

  def run(self, feeds: Mapping[str, np.ndarray], kind: str, measure: Measure) -> None:
    """Check every node on one input of the model."""
    self._tell(SessionStep.VALUES, "")
    values = {**feeds, **run_session(self._whole, feeds)}
    if not self._apart:
      try:
        self._tell(SessionStep.NODES, "")
        self._check(self._cuts, values, kind, measure)
        return
      except MirageError as error:
        if error.code != "SESSION_FAILED":
          raise
        self._apart = True  # which of them it is shows one by one
    for cut in self._cuts:
      if cut.node in self._failed:
        continue
      try:
        self._tell(SessionStep.NODE, cut.node)
        self._check((cut,), values, kind, measure)
      except MirageError as error:
        if error.code != "SESSION_FAILED":
          raise
        self._failed[cut.node] = error.detail

  def _check(
    self, cuts: tuple[Boundary, ...], values: Mapping[str, np.ndarray], kind: str, measure: Measure
  ) -> None:
    """Those nodes, side by side."""
    if not cuts:
      return
    if cuts not in self._pairs:
      self._pairs[cuts] = self._detach(cuts, values)
    regions, nodes = self._pairs[cuts]
    feeds = fed(regions.get_inputs(), values)
    want, got = run_session(regions, feeds), run_session(nodes, fed(nodes.get_inputs(), values))
    measure = measured(measure, loose_rows(regions, self._caches, feeds, want))
    for cut in cuts:
      exact, defined = partial(self._in_fp32, cut, values), partial(self._as_defined, cut, values)
      shaken, nearby = (partial(self._shaken, cut, values, errors) for errors in (WIDE, NARROW))
      known = KnownOriginal(kind, exact, defined, shaken=shaken, nearby=nearby)
      for name in cut.makes:
        self._worst.add(cut.node, measure(name, want[name], got[name], known))

  def _detach(
    self, cuts: tuple[Boundary, ...], values: Mapping[str, np.ndarray]
  ) -> tuple[ort.InferenceSession, ort.InferenceSession]:
    first, second = self._original, self._rewritten
    regions = detached_original(first, cuts, values)
    nodes = detached_nodes(second, cuts, values)
    return (
      open_session(regions, self._reference, first.external_folder),
      open_session(nodes, self._candidate, second.external_folder),
    )

  def _in_fp32(self, cut: Boundary, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What a region of the original computes from the same bits in fp32, one without halves in float64."""
    region = onnx.load_from_string(detached_original(self._original, (cut,), values))
    run = run_widened if has_halves(region) else run_in_double
    return run(region, self._original.folder, fed(region.graph.input, values))

  def _as_defined(self, cut: Boundary, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same, rounded after every node as its type says."""
    region = onnx.load_from_string(detached_original(self._original, (cut,), values))
    return run_rounded(region, self._original.folder, fed(region.graph.input, values))

  def _shaken(
    self, cut: Boundary, values: Mapping[str, np.ndarray], errors: Errors
  ) -> Iterator[Mapping[str, np.ndarray]]:
    """The same from the same bits, in runs with errors."""
    region = onnx.load_from_string(detached_original(self._original, (cut,), values))
    return Shaken(region, self._original.folder, errors).runs(fed(region.graph.input, values))

  @property
  def failures(self) -> tuple[str, ...]:
    """The nodes that onnxruntime could not run by themselves, and why."""
    return tuple(f"SESSION_FAILED: {node}: {why}: not checked" for node, why in self._failed.items())

  @property
  def differences(self) -> tuple[RegionDifference, ...]:
    """In topological order of the nodes."""
    return self._worst.differences
