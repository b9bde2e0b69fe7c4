"""Steps of a decoder for caches of one number of rows: at what sizes they are optimized.

Where a run gives how many rows there are, a kernel's blocks cannot have their parts of them in advance, and
attention of few sequences is slower. A program that always makes the same cache (``max_length`` of
onnxruntime-genai) says so.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
from onnx import ModelProto

from mirage_onnx.errors import MirageError
from mirage_onnx.importer.steps_apart import ROOM, room_of


def sizes_of_steps(
  model: Path | ModelProto, shapes: Mapping[str, Sequence[int]], steps: bool | int
) -> tuple[Mapping[str, Sequence[int]], dict[str, int]]:
  """``shapes``, and those sizes of which alone steps are; ``steps``: a number is that of the rows of caches.

  Raises:
      MirageError: OPTION_INVALID, the model has no such steps, or ``shapes`` other caches.
  """
  one = {n: s[0] for n, s in shapes.items() if len(s) == 1}
  if isinstance(steps, bool):
    return shapes, one
  proto = model if isinstance(model, ModelProto) else onnx.load(model, load_external_data=False)
  name = room_of(proto)
  if not name or steps < 1:
    raise MirageError("OPTION_INVALID", f"caches of {steps} rows: no steps of this model get a branch")
  if tuple(shapes.get(name, (steps,))) != (steps,):
    raise MirageError("OPTION_INVALID", f"caches of {steps} rows, and {name}={list(shapes[name])}")
  return {**shapes, name: (steps,)}, {**one, ROOM: steps}
