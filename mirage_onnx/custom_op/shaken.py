"""Which integers and booleans of an output hang on how floats are rounded.

A maximum's place, or the side of a threshold, is another one in two right computations where two numbers
are nearly equal. Which elements these are the original says itself, by stochastic arithmetic (J. Vignes,
1993): all floats that the nodes of its main graph take and make get a relative error of some units roundoff,
drawn anew in every run. What stays the same in all of these is decided, and has to be the original's.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import TensorProto, helper

from mirage_onnx.custom_op.difference import ROUNDINGS, RTOL, OutputDifference
from mirage_onnx.custom_op.model_run import How, open_session, run_session
from mirage_onnx.custom_op.widen import is_too_wide, value_kinds, widened, widened_values
from mirage_onnx.errors import MirageError

if TYPE_CHECKING:
  import onnxruntime as ort

RUNS = 24
#: Standard deviation of an error in units roundoff: an element that another computation, off by two of them,
#: turns is turned in 24 runs but with a chance of 10^-4.
UNITS = 4
#: The relative error by type; a unit as ``difference`` adds them up, in fp32 of the order of sums.
ERROR: dict[int, float] = {
  kind: UNITS * RTOL[name] / ROUNDINGS
  for kind, name in (
    (TensorProto.BFLOAT16, "bfloat16"), (TensorProto.FLOAT16, "float16"), (TensorProto.FLOAT, "float32"),
  )
}  # fmt: skip
#: What makes floats of floats, and rounds none of them.
EXACT = frozenset((
  "Abs", "Clip", "Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements", "GatherND",
  "Identity", "Max", "MaxPool", "Min", "Neg", "Pad", "ReduceMax", "ReduceMin", "Relu", "Reshape", "Slice",
  "SpaceToDepth", "Split", "Squeeze", "Tile", "TopK", "Transpose", "Unsqueeze", "Where",
))  # fmt: skip


class Shaken:
  """The original, run with errors; opened when it is first asked. The same in every process."""

  def __init__(self, model: onnx.ModelProto, folder: Path | None) -> None:
    self._model, self._folder = model, folder

  def runs(self, feeds: Mapping[str, np.ndarray]) -> Iterator[dict[str, np.ndarray]]:
    """``RUNS`` times all outputs, floats in fp32; none where onnxruntime does not run it so."""
    session = self._session
    for _ in range(RUNS if session is not None else 0):
      assert session is not None
      yield run_session(session, widened_values(feeds))

  @cached_property
  def _session(self) -> "ort.InferenceSession | None":
    if is_too_wide(self._model):
      return None
    try:
      text = shaken(self._model, self._folder).SerializeToString()
      return open_session(text, How("cpu", ep="none"), str(self._folder) if self._folder else None)
    except MirageError as error:
      if error.code != "SESSION_FAILED":
        raise
      return None


def shaken(model: onnx.ModelProto, folder: Path | None = None) -> onnx.ModelProto:
  """``widened``, with a relative error of its own type on every float.

  These are inputs, weights and what nodes make that can round. What lies in functions and subgraphs is as it
  is, and so is a value whose type is not known.
  """
  found = widened(model, folder)
  given = {i.name: i.type.tensor_type.elem_type for i in model.graph.input}
  given |= {t.name: t.data_type for t in model.graph.initializer}
  kinds = {name: kind for name, kind in {**value_kinds(model), **given}.items() if kind in ERROR}
  nodes = list(found.graph.node)
  del found.graph.node[:]
  moved = dict[str, str]()

  def move(name: str, to: str, kind: int) -> None:
    factor = {
      "dtype": TensorProto.FLOAT,
      "mean": 1.0,
      "scale": ERROR[kind],
      "seed": float(len(found.graph.node)),
    }
    found.graph.node.extend((
      helper.make_node("RandomNormalLike", [name], [f"{name}/factor"], **factor),
      helper.make_node("Mul", [name, f"{name}/factor"], [to]),
    ))  # fmt: skip

  for node in nodes:
    if node.op_type in EXACT or kinds.keys().isdisjoint(node.input):
      found.graph.node.append(node)
      continue
    for name in dict.fromkeys(n for n in node.input if n in given and n in kinds and n not in moved):
      moved[name] = f"{name}/moved"
      move(name, moved[name], kinds[name])
    node.input[:] = [moved.get(name, name) for name in node.input]
    made = [name for name in node.output if name in kinds]
    node.output[:] = [f"{name}/right" if name in kinds else name for name in node.output]
    found.graph.node.append(node)
    for name in made:
      move(f"{name}/right", name, kinds[name])
  return found


def undecided(
  found: OutputDifference,
  want: np.ndarray,
  got: np.ndarray,
  name: str,
  runs: Iterator[Mapping[str, np.ndarray]],
  share: float = 0.0,
) -> OutputDifference:
  """``found``, of integers or booleans that differ, passed where the original makes others of them, too.

  ``share``: so many of all may differ although they are decided.
  """
  if want.shape != got.shape or want.dtype != got.dtype:
    return found
  decided = differs = np.asarray(want != got)
  ran = False
  for values in runs:
    ran = True
    if not decided.any():
      break
    if (now := values.get(name)) is None or now.shape != want.shape:
      return found
    decided = decided & (now == want)
  if not ran:
    return found
  if decided.sum() > share * decided.size:
    place = tuple(int(i) for i in np.argwhere(decided)[0])
    return replace(found, reason=f"{got[place]} instead of {want[place]} at {list(place)}")
  few = f"{int(differs.sum())} of {differs.size}"
  return replace(found, passed=True, reason=f"{few} hang on how the original is rounded")
