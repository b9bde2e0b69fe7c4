"""Export with torch's own exporter, strip the machine's traces, check against torch.

Needs torch, transformers and peft (`pip install .[export]`); nothing that is installed,
tested or benchmarked imports this module.
"""

import re
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import packed
import torch
import weights
from google.protobuf.message import Message

FOLDER = Path(__file__).resolve().parent
MAX_BYTES = 500_000
_TYPES = {
  torch.float16: onnx.TensorProto.FLOAT16, torch.bfloat16: onnx.TensorProto.BFLOAT16,
  torch.float32: onnx.TensorProto.FLOAT,
}  # fmt: skip
ABSOLUTE_PATH = re.compile(rb"/(?:work|root|home|tmp|opt|usr)/|[/\\]Users[/\\]")


def fill(module):
  """Give every parameter the value that ``weights.values`` makes of its name.

  The default initialisation (std 0.02, norms exactly one, biases and lora_B exactly zero)
  would leave whole terms of the graph invisible to a numerical check.
  """
  with torch.no_grad():
    for name, parameter in module.named_parameters():
      drawn = weights.values(name, tuple(parameter.shape), _TYPES[parameter.dtype])
      # numpy's bfloat16 is not torch's; fp32 holds every value of both.
      parameter.copy_(torch.from_numpy(drawn.astype(np.float32)).to(parameter.dtype))


def strip(model):
  """Remove doc strings and metadata (stack traces with paths) from every message, in place."""

  def visit(message):
    for field, value in list(message.ListFields()):
      if field.name in ("metadata_props", "doc_string"):
        message.ClearField(field.name)
      elif field.message_type is not None:
        for item in [value] if isinstance(value, Message) else value:
          visit(item)

  visit(model)
  return model


def export(module, inputs, outputs, path, *, tolerance=1e-2, max_bytes=MAX_BYTES):
  """Export `module` with static shapes, save it stripped, compare ONNX Runtime with torch.

  `tolerance` bounds the largest difference relative to the largest reference value.
  """
  module = module.eval()
  with torch.no_grad():
    expected = module(*inputs.values())
    program = torch.onnx.export(
      module,
      tuple(inputs.values()),
      input_names=list(inputs),
      output_names=list(outputs),
      dynamo=True,
      external_data=False,
      verbose=False,
    )
  if program is None:
    raise RuntimeError("the exporter returned no program")
  model = strip(program.model_proto)
  data = model.SerializeToString(deterministic=True)
  leak = ABSOLUTE_PATH.search(data)
  if leak:
    raise ValueError(f"absolute path in the model: {data[leak.start() : leak.end() + 60]!r}")
  if len(data) > max_bytes:
    raise ValueError(f"{len(data)} bytes, more than {max_bytes}")
  onnx.checker.check_model(model, full_check=True)
  expected = (expected,) if isinstance(expected, torch.Tensor) else expected
  errors = compare(data, {name: value.numpy() for name, value in inputs.items()}, expected)
  path.write_bytes(data)
  report(model, path, len(data), dict(zip(outputs, errors, strict=True)))
  if max(errors) > tolerance:
    raise ValueError(f"ONNX Runtime differs from torch by {max(errors):.2e}")
  return model


def write_packed(path, module):
  """Put the graph of the `module` that `export` saved at `path` into the archive."""
  model = onnx.load(path)
  data = weights.bare(onnx.load(path), (name for name, _ in module.named_parameters()))
  if weights.filled(data) != model:
    raise ValueError(f"{path.name} differs after packing")
  weights.store(packed.PREFIX + path.stem, data)
  print(f"  packed: {len(data)} bytes")


def compare(data, feeds, expected):
  """Return, for each output, the largest difference relative to the largest reference."""
  session = ort.InferenceSession(data, providers=["CPUExecutionProvider"])
  errors = []
  for got, want in zip(session.run(None, feeds), expected, strict=True):
    reference = want.numpy().astype(np.float64)
    if got.shape != reference.shape or not np.isfinite(got).all():
      raise ValueError(f"wrong or non-finite output {got.shape}, want {reference.shape}")
    errors.append(float(np.abs(got - reference).max() / np.abs(reference).max()))
  return errors


def report(model, path, size, errors):
  """Print size, versions, differences and operator counts."""
  opsets = {entry.domain or "ai.onnx": entry.version for entry in model.opset_import}
  print(f"{path.name}: {size} bytes, IR {model.ir_version}, opsets {opsets}")
  print("  difference from torch:", {name: f"{error:.1e}" for name, error in errors.items()})
  counts = Counter(node.op_type for node in model.graph.node)
  print("  operators:", ", ".join(f"{name} {count}" for name, count in counts.most_common()))
