"""Rows of a cache behind its length: what they hold depends on whose memory it is, so they are no measure.

onnxruntime's GroupQueryAttention leaves them as they were where the cache is updated in its own memory, and
fills them with zeros (CPU provider) or with nothing (CUDA) where it is a copy; nobody reads them. They are
found by a run of the original in place: what differs from its run with a copy is loose. Nothing of this
module's own says how long a cache is.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from mirage_onnx.custom_op.difference import InFp32, OutputDifference
from mirage_onnx.custom_op.input_facts import ATTENTION, CACHES
from mirage_onnx.custom_op.measure import KnownOriginal, Measure
from mirage_onnx.custom_op.model_run import ort_value
from mirage_onnx.importer.graph import nodes_of

if TYPE_CHECKING:
  import onnxruntime as ort


def caches(graph: onnx.GraphProto) -> dict[str, str]:
  """What the operator makes of a cache -> the cache that it was given."""
  return {
    n.output[made]: n.input[given]
    for n in nodes_of(graph)
    for (op, given), made in CACHES.items()
    if n.op_type == op == ATTENTION and given < len(n.input) and made < len(n.output)
  }


def loose_rows(
  session: "ort.InferenceSession",
  pairs: Mapping[str, str],
  feeds: Mapping[str, np.ndarray],
  want: Mapping[str, np.ndarray],
) -> dict[str, np.ndarray]:
  """Output -> truth values of its shape, True where the original says one thing in place and another beside.

  ``want``: the outputs of a run on ``feeds`` with copies; ``pairs``: of ``caches``, of which those count that
  are an output and an input of the session. bfloat16, which numpy cannot take from onnxruntime, is not
  looked at.
  """
  asked = {
    o: i for o, i in pairs.items()
    if o in want and i in feeds and want[o].dtype in (np.float16, np.float32)
    and want[o].shape == feeds[i].shape and want[o].size
  }  # fmt: skip
  if not asked:
    return {}
  device = "cuda" if session.get_providers()[0] == "CUDAExecutionProvider" else "cpu"
  memory: dict[str, Any] = {i: ort_value(feeds[i].copy(), device) for i in asked.values()}
  binding = session.io_binding()
  for name, value in feeds.items():
    binding.bind_ortvalue_input(name, memory[name] if name in memory else ort_value(value))
  for output in session.get_outputs():
    if output.name in asked:
      binding.bind_ortvalue_output(output.name, memory[asked[output.name]])
    else:
      binding.bind_output(output.name, "cpu")
  session.run_with_iobinding(binding)
  bits = {o: (memory[i].numpy().view(np.uint8), np.ascontiguousarray(want[o]).view(np.uint8))
          for o, i in asked.items()}  # fmt: skip
  found = {o: (a != b).reshape(*want[o].shape, want[o].itemsize).any(-1) for o, (a, b) in bits.items()}
  return {o: mask for o, mask in found.items() if mask.any()}


def measured(measure: Measure, loose: Mapping[str, np.ndarray]) -> Measure:
  """``measure``, to which nothing counts that is ``loose``."""

  def one(name: str, want: np.ndarray, got: np.ndarray, known: KnownOriginal) -> OutputDifference:
    mask = loose.get(name)
    if mask is None or got.shape != mask.shape:
      return measure(name, want, got, known)

    def tight(x: np.ndarray) -> np.ndarray:
      return np.where(mask, x.dtype.type(0), x)

    def of(values: InFp32) -> InFp32:
      return lambda: {n: tight(x) for n, x in values().items() if n == name}

    tightened = replace(known, in_fp32=of(known.in_fp32), as_defined=of(known.as_defined))
    return measure(name, tight(want), tight(got), tightened)

  return one
