"""What a comparison of two models found, output by output and custom node by custom node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from math import isfinite
from typing import Any

from mirage_onnx.custom_op.difference import OutputDifference, worse
from mirage_onnx.custom_op.model_check import RegionDifference

NO_KERNEL = "no kernel ran: this compares the function bodies, it says nothing about kernels"
ERRORS_ADD_UP = (
  "every custom node agrees with the region it replaced, on the original's values: "
  "small errors add up, or the models differ outside of the regions"
)

ALONE = (
  "onnxruntime's CPU provider cannot run the original: no outputs were compared, but every custom "
  "node by itself with its region in fp32"
)
#: Both models run so.
IN_FP32 = (
  "onnxruntime's CPU provider cannot run the original: outputs are of both models in fp32, by the "
  "function bodies; every custom node was compared by itself with its region in fp32"
)


@dataclass(frozen=True, slots=True)
class NodePath:
  """A custom node of the second model; ``path`` is ``kernel``, ``emulated``, ``body`` or ``not run``."""

  name: str
  path: str
  launches: int


@dataclass(frozen=True, slots=True)
class Comparison:
  """What ``compare_models`` found; ``inputs`` are the kinds that were tried.

  ``regions``: each custom node that ran kernels, fed with the original's values, against the
  region it replaced, in topological order. ``source``: how the kernels are tied to their text.
  ``failures``: what could not be checked, because onnxruntime failed or was killed there; what the function
  bodies compute otherwise than the original.
  ``unverified``: why images that did not run were not compiled again either: then nothing is known
  of them, and the comparison has not passed.
  """

  passed: bool
  outputs: tuple[OutputDifference, ...]
  nodes: tuple[NodePath, ...]
  inputs: tuple[str, ...]
  note: str = ""
  regions: tuple[RegionDifference, ...] = ()
  source: str = ""
  failures: tuple[str, ...] = ()
  unverified: str = ""

  def with_source(self, text: str, unseen: str) -> Comparison:
    """``unseen``: why images were not compiled again, or ""."""
    ran = all(node.path == "kernel" and node.launches for node in self.nodes)
    if not unseen or ran:
      return replace(self, source=text)
    return replace(self, source=text, unverified=unseen, passed=False)

  @property
  def first_difference(self) -> OutputDifference | None:
    """The first output that is not bit-identical."""
    return next((o for o in self.outputs if not o.identical), None)

  @property
  def first_divergence(self) -> str | None:
    """The first custom node, in topological order, that is beyond its tolerance by itself."""
    return next((r.node for r in self.regions if not r.output.passed), None)

  @property
  def needed_rtol(self) -> float | None:
    """The least tolerance at which every output passes (without any, every custom node by itself).

    None where there is none.
    """
    needed = [o.needed_rtol for o in self.outputs or [r.output for r in self.regions]]
    return None if None in needed else max((n for n in needed if n is not None), default=0.0)

  def to_dict(self) -> dict[str, Any]:
    """The JSON report (``report.schema.VerifyReport``)."""
    first = self.first_difference
    return {
      "schema": 1,
      "passed": self.passed,
      "outputs": [_row(o) for o in self.outputs],
      "nodes": [asdict(n) for n in self.nodes],
      "regions": [{"node": r.node, **_row(r.output)} for r in self.regions],
      "inputs": list(self.inputs),
      "source": self.source,
      "unverified": self.unverified,
      "note": self.note,
      "failures": list(self.failures),
      "first_difference": first.name if first else None,
      "first_divergence": self.first_divergence,
      "needed_rtol": self.needed_rtol,
    }


def _row(found: OutputDifference) -> dict[str, Any]:
  """JSON has no infinity: what cannot be compared at all has no largest error."""
  return {**asdict(found), "max_abs": found.max_abs if isfinite(found.max_abs) else None}


def together(found: Mapping[str, Comparison]) -> Comparison:
  """What was found of one model as each of its targets runs it, by their names.

  An output is the worst of them; nodes say of which target they are.
  """
  worst: dict[str, OutputDifference] = {}
  for c in found.values():
    for o in c.outputs:
      worst[o.name] = worse(worst[o.name], o) if o.name in worst else o
  every = [(f"({target})", c) for target, c in found.items()]

  def texts(kind: str) -> str:
    parts = dict[str, list[str]]()
    for of, c in every:
      if text := getattr(c, kind):
        parts.setdefault(text, []).append(of)
    return "; ".join(f"{' '.join(of)} {text}" for text, of in parts.items())

  return Comparison(
    passed=all(c.passed for c in found.values()),
    outputs=tuple(worst.values()),
    nodes=tuple(replace(n, name=f"{n.name} {of}") for of, c in every for n in c.nodes),
    inputs=tuple(dict.fromkeys(kind for c in found.values() for kind in c.inputs)),
    note=texts("note"),
    regions=tuple(replace(r, node=f"{r.node} {of}") for of, c in every for r in c.regions),
    source=texts("source"),
    failures=tuple(f"{of} {f}" for of, c in every for f in c.failures),
    unverified=texts("unverified"),
  )
