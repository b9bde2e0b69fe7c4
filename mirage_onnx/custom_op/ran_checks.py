"""Which custom nodes are checked by themselves on which input: those that ran kernels on it.

Nodes of the main graph all do. One in a subgraph runs where its branch is taken, or its body; its subgraph
is then unrolled (``first_runs``), so that the node has the original's values too. What no input has reached
is unrolled in the end all the same, as far as the original can be run so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from functools import cached_property

import numpy as np

from mirage_onnx.custom_op.boundary import Boundary, boundaries
from mirage_onnx.custom_op.first_runs import custom_names, custom_paths, first_runs
from mirage_onnx.custom_op.measure import Measure
from mirage_onnx.custom_op.model_check import RegionCheck, RegionDifference
from mirage_onnx.custom_op.model_nodes import Model, ModelFile
from mirage_onnx.errors import MirageError
from mirage_onnx.importer.old_inputs import without_old_inputs
from mirage_onnx.importer.split_caches import split_caches
from mirage_onnx.importer.steps_apart import apart_as_in

#: Makes the check of some nodes of two models.
MakeCheck = Callable[[ModelFile, ModelFile, tuple[Boundary, ...]], RegionCheck]


class RanChecks:
  """The checks of an original ``a`` and its rewritten form ``b``."""

  def __init__(self, a: Model, b: Model, make: MakeCheck) -> None:
    self._a, self._b, self._make = a, b, make
    self._checks: list[tuple[frozenset[str], RegionCheck]] = []
    self._tried = set[str]()
    self._failures: list[str] = []
    self._unreached: list[str] = []

  @cached_property
  def inner(self) -> frozenset[str]:
    """The custom nodes in subgraphs."""
    return custom_names(ModelFile.read(self._b).proto)

  def run(self, ran: Set[str], feeds: Mapping[str, np.ndarray], kind: str, measure: Measure) -> None:
    """Check the nodes that ran on this input."""
    for nodes in (ran - self.inner - self._tried, (ran & self.inner) - self._tried):
      self._add(frozenset(nodes))
    for nodes, check in self._checks:
      if nodes <= ran or nodes.isdisjoint(self.inner):
        check.run(feeds, kind, measure)

  def finish(self, feeds: Mapping[str, np.ndarray], kind: str, measure: Measure) -> None:
    """Check what no input has reached, if anything ran kernels at all; ``feeds``: of any of them."""
    if not self._checks:
      return
    by_place: dict[frozenset[str], set[str]] = {}
    proto = ModelFile.read(self._b).proto
    for node in sorted(self.inner - self._tried):
      by_place.setdefault(custom_paths(proto, {node}), set()).add(node)
    for nodes in by_place.values():
      try:
        check = self._made(frozenset(nodes))
        check.run(feeds, kind, measure)
        self._checks.append((frozenset(nodes), check))
      except MirageError as error:
        if error.code != "SESSION_FAILED":
          raise
        self._unreached += sorted(nodes)

  def _add(self, nodes: frozenset[str]) -> None:
    if not nodes:
      return
    self._tried |= nodes
    try:
      self._checks.append((nodes, self._made(nodes)))
    except MirageError as error:
      if error.code != "SESSION_FAILED":
        raise
      self._failures.append(f"SESSION_FAILED: custom nodes by themselves: {error.detail}: not checked")

  def _made(self, nodes: frozenset[str]) -> RegionCheck:
    original, rewritten = ModelFile.read(self._a), ModelFile.read(self._b)
    if not nodes.isdisjoint(self.inner):
      paths = custom_paths(rewritten.proto, nodes)
      apart = apart_as_in(original.proto, rewritten.proto)
      original, rewritten = (
        ModelFile(first_runs(without_old_inputs(proto), paths), f.folder)
        for f, proto in ((original, apart), (rewritten, rewritten.proto))
      )
    cuts = tuple(c for c in boundaries(rewritten) if c.node in nodes)
    named = {o for n in original.proto.graph.node for o in n.output}
    named |= {v.name for v in (*original.proto.graph.input, *original.proto.graph.initializer)}
    if any(x not in named for c in cuts for x in c.reads):  # places of several new tokens: nodes name them
      original = ModelFile(split_caches(original.proto), original.folder)
    return self._make(original, rewritten, cuts)

  @property
  def failures(self) -> tuple[str, ...]:
    """Why nodes were not checked."""
    return (*self._failures, *(f for _, check in self._checks for f in check.failures))

  @property
  def note(self) -> str:
    """Which nodes no input reached, and could not be run otherwise."""
    if not self._unreached:
      return ""
    return f"no input reached {', '.join(self._unreached)}: not run"

  @property
  def differences(self) -> tuple[RegionDifference, ...]:
    """Of the main graph first, each graph in topological order."""
    return tuple(d for _, check in self._checks for d in check.differences)
