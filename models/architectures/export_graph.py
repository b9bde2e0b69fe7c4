"""One export: random weights in, a graph without them out, checked against torch."""

from dataclasses import dataclass

import numpy as np
import onnxruntime as ort
import torch
import weights
from export import ABSOLUTE_PATH, fill, strip


@dataclass(frozen=True)
class Export:
  """What is exported: a module with example inputs, in one element type."""

  name: str
  module: torch.nn.Module
  inputs: dict[str, torch.Tensor]
  dtype: torch.dtype


def export_graph(job, opset=20, tolerance=3e-2):
  """Put the graph into the archive if it agrees with torch once its weights are made again.

  Raises:
      ValueError: it does not agree, the file holds an absolute path, or ``weights.bare`` refuses.
  """
  module = job.module.eval().to(job.dtype)
  fill(module)
  inputs = {k: v.to(job.dtype) if v.is_floating_point() else v for k, v in job.inputs.items()}
  with torch.no_grad():
    expected = module(*inputs.values())
    expected = (expected,) if isinstance(expected, torch.Tensor) else expected
    program = torch.onnx.export(
      module, tuple(inputs.values()), input_names=list(inputs), dynamo=True,
      output_names=[f"output_{i}" for i in range(len(expected))],
      external_data=False, verbose=False, opset_version=opset,
    )  # fmt: skip
  assert program is not None
  parameters = (name for name, _ in module.named_parameters())
  model = strip(program.model_proto)
  data = weights.bare(model, parameters)
  if leak := ABSOLUTE_PATH.search(data):
    raise ValueError(f"absolute path in the model: {data[leak.start() : leak.end() + 60]!r}")
  # onnxruntime's CPU provider runs no bfloat16: there the fp16 export stands for it.
  error = 0.0
  if job.dtype is not torch.bfloat16:
    error = difference(weights.filled(data), inputs, expected)
  print(
    f"{job.name}: {len(data)} bytes, {len(model.graph.node)} nodes, difference from torch {error:.1e}",
    flush=True,
  )
  if error > tolerance:
    raise ValueError(f"ONNX Runtime differs from torch by {error:.2e}")
  weights.store(job.name, data)


def difference(model, inputs, expected):
  """The largest difference of an output, relative to its largest value."""
  session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
  fed = {i.name for i in session.get_inputs()}
  got = session.run(None, {k: v.numpy() for k, v in inputs.items() if k in fed})
  worst = 0.0
  for have, want in zip(got, expected, strict=True):
    reference = want.float().numpy().astype(np.float64)
    if have.shape != reference.shape or not np.isfinite(have).all():
      raise ValueError(f"wrong or non-finite output {have.shape}, want {reference.shape}")
    worst = max(worst, float(np.abs(have - reference).max() / np.abs(reference).max()))
  return worst
