"""A session of one arm of a race: a model file, as a user would run it, on memory that stays the same."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from mirage_onnx.custom_op.bodies import with_bodies
from mirage_onnx.custom_op.model_run import ort_value
from mirage_onnx.custom_op.runtime import EXTERNAL_FOLDER_KEY, import_onnxruntime
from mirage_onnx.custom_op.session import CPU_PROVIDER, CUDA_PROVIDER, InferenceSession
from mirage_onnx.errors import MirageError

if TYPE_CHECKING:
  import onnxruntime as ort

#: Runs before anything counts: allocations, the choice of algorithms, the capture of a graph.
WARM_RUNS = 4
#: onnxruntime's number for a run that neither captures nor replays a graph.
NO_GRAPH = "-1"


@dataclass(frozen=True, slots=True)
class Arm:
  """A model file; the custom nodes with an output of ``bodies`` run their function bodies."""

  path: str
  bodies: frozenset[str] = frozenset()


class ArmSession:
  """A session of an arm, and what runs it with given inputs."""

  def __init__(self, arm: Arm, provider: str, *, graph: bool) -> None:
    runtime = import_onnxruntime()
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    model: str | bytes = arm.path
    if arm.bodies:
      model = with_bodies(onnx.load(arm.path, load_external_data=False), arm.bodies).SerializeToString()
      options.add_session_config_entry(EXTERNAL_FOLDER_KEY, os.path.dirname(os.path.abspath(arm.path)))
    wanted = CUDA_PROVIDER if provider == "cuda" else CPU_PROVIDER
    more = {"enable_cuda_graph": "1"} if graph else {}
    providers: list[Any] = [(wanted, more)]
    if provider == "cuda" and not graph:
      providers.append(CPU_PROVIDER)
    self.graph, self.device = graph, "cuda" if provider == "cuda" else "cpu"
    self.session: ort.InferenceSession = InferenceSession(model, options, providers)
    if self.session.get_providers()[0] != wanted:
      raise MirageError("SESSION_FAILED", f"onnxruntime could not use {wanted}")

  def bound(
    self, feeds: Mapping[str, np.ndarray], graph_id: str, shared: Mapping[str, str]
  ) -> Callable[[], object]:
    """A run on memory of the device that stays the same, as the graph of this number if it captures any.

    ``NO_GRAPH`` is none, in a session that captures, too. ``shared``: the outputs in the memory of an input.
    """
    binding, options = self.session.io_binding(), import_onnxruntime().RunOptions()
    if self.graph:  # the first run allocates, and says how large the results are
      options.add_run_config_entry("gpu_graph_id", NO_GRAPH)
    kept = {name: ort_value(x, self.device) for name, x in feeds.items()}
    for name, value in kept.items():
      binding.bind_ortvalue_input(name, value)
    names = [o.name for o in self.session.get_outputs()]
    for name in names:
      if name in shared:
        binding.bind_ortvalue_output(name, kept[shared[name]])
      else:
        binding.bind_output(name, self.device)
    self.session.run_with_iobinding(binding, options)
    results = binding.get_outputs()
    binding.clear_binding_outputs()
    for name, value in zip(names, results, strict=True):
      binding.bind_ortvalue_output(name, value)
    if self.graph:
      options = import_onnxruntime().RunOptions()
      options.add_run_config_entry("gpu_graph_id", graph_id)
    return lambda: (self.session.run_with_iobinding(binding, options), kept, results)


def warmed(run: Callable[[], object]) -> Callable[[], object]:
  """``run``, after ``WARM_RUNS`` of it."""
  for _ in range(WARM_RUNS):
    run()
  return run
