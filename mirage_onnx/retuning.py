"""An optimized model measured where there is a GPU: kernels that cost time go, in place.

Its original is in it: the bodies of its custom nodes are the nodes that they replaced. Both are timed as
whole sessions, as before a model is written (``racing.py``); what has to go is replaced by its body, and
the file is checked like any that is written, before it takes the old one's name.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx

from mirage_onnx.custom_op.arm_session import Arm
from mirage_onnx.custom_op.bodies import inlined
from mirage_onnx.custom_op.model_nodes import CustomNode, ModelFile
from mirage_onnx.custom_op.target_view import without
from mirage_onnx.errors import MirageError, Rejection
from mirage_onnx.importer.external import weight_bytes
from mirage_onnx.racing import Gate
from mirage_onnx.rewrite.kept_checks import KeptChecks
from mirage_onnx.rewrite.save import save_model
from mirage_onnx.rewrite.stock_check import check_written

#: The check of the file may take so long at most, and so long whatever the time has left.
MOST_S, LEAST_S = 60.0, 5.0


@dataclass(frozen=True, slots=True)
class Group:
  """One kernel and its places. ``saved_us``: what it should save in all, by which it was chosen."""

  key: str
  nodes: tuple[CustomNode, ...]
  saved_us: float

  @property
  def outputs(self) -> frozenset[str]:
    """Of all its nodes."""
    return frozenset(o for n in self.nodes for o in n.outputs)


@dataclass(frozen=True, slots=True)
class Retuned:
  """``dropped``: key of each group that went, with the reason. ``checked``: what was, of a new file."""

  dropped: Mapping[str, str]
  checked: str


def groups_of(file: ModelFile, saved_us: Mapping[str, float]) -> tuple[Group, ...]:
  """The custom nodes by kernel, what should save the least first; ``saved_us``: by the name of a node."""
  found = dict[int, list[CustomNode]]()
  for n in file.custom_nodes():
    found.setdefault(n.plan, []).append(n)
  made = [
    Group(f"r{plan}", tuple(nodes), sum(saved_us.get(n.name, 0.0) for n in nodes))
    for plan, nodes in sorted(found.items())
  ]
  return tuple(sorted(made, key=lambda g: g.saved_us))


def losers(path: Path, groups: tuple[Group, ...], gate: Gate) -> dict[str, str]:
  """The groups without which the model is faster than its original with confidence; with the reasons.

  Nothing is written: sessions run the bodies of what is left out.
  """
  left = {g.key: g.outputs for g in groups}
  gone, dropped = frozenset[str](), dict[str, str]()
  while left:
    found = gate.losers(Arm(str(path), gone), left)
    if not found:
      break
    dropped |= found
    gone |= {o for key in found for o in left.pop(key)}
  return dropped


def retuned(
  path: Path,
  file: ModelFile,
  groups: tuple[Group, ...],
  gate: Gate,
  *,
  check: bool,
  noted: Callable[[onnx.ModelProto, Mapping[str, str]], None],
  suffix: str = "",
) -> Retuned:
  """Measure the model at ``path`` and write it again without what loses.

  ``suffix``: of the target whose kernels ``groups`` are, in a file for several; others keep theirs.
  ``noted``: adds to the new model what it is to keep of this. Where nothing is lost it is written too, with
  that; where nothing could be timed it stays as it is.

  Raises:
      MirageError: SESSION_FAILED where onnxruntime cannot run the original; TUNE_FAILED; OUTPUT_UNWRITABLE.
  """
  dropped = losers(path, groups, gate)
  if gate.note:
    raise MirageError("SESSION_FAILED", gate.note)
  gone = [g for g in groups if g.key in dropped]
  if suffix:
    model = without(file.proto, suffix, {n.plan for g in gone for n in g.nodes})
  else:
    model = inlined(file.proto, frozenset(o for g in gone for o in g.outputs))
  noted(model, dropped)
  said = "not checked"

  def checked(new: Path) -> Rejection | None:
    nonlocal said
    if not check:
      return None
    weights = weight_bytes(model)
    kept = KeptChecks.of_user(path, file.proto)
    found = kept.passed(new)
    if found is None:
      found = check_written(path, new, weights, max(LEAST_S, min(MOST_S, gate.end - time.monotonic())))
      kept.keep(new, found)
    said = found.said
    return Rejection("CHECK_FAILED", found.problem) if found.problem else None

  refused = save_model(model, path, path, check=checked, in_place=True)
  if refused is not None:
    raise MirageError("TUNE_FAILED", refused.reason)
  return Retuned(dropped, said)
