"""One export at real size: a module in, a graph whose weights are left out.

Exported weights have values of the right kind (norms about one, matrices that keep activations of
the order of one); what is stored is how each is distributed (``real_archive``).
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
import real_archive
import torch
from export import ABSOLUTE_PATH, strip
from transformers.initialization import no_init_weights

#: Smaller initializers stay as they are, as do those with few different values (masks, ranges).
LEFT_OUT_BYTES, FEW = 2048, 16
_SAMPLE = 1 << 18
_DRAWN = {t.name for t in (
  ir.DataType.FLOAT16, ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.BFLOAT16, ir.DataType.INT8,
  ir.DataType.UINT8, ir.DataType.INT4, ir.DataType.UINT4,
)}  # fmt: skip
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}


@dataclass(frozen=True)
class Real:
  """A model of real size.

  ``make`` returns the module and its inputs by name. ``limits``: exclusive ends of integer inputs.
  ``dynamic``: input -> {axis: name of its dimension}; ``sizes``: at which those are checked.
  ``after``: changes the exported graph (quantizes it, ...).
  """

  name: str
  make: Callable[[], tuple[torch.nn.Module, Mapping[str, torch.Tensor]]]
  dtype: str = "fp16"
  limits: Mapping[str, int] = field(default_factory=dict)
  dynamic: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
  sizes: Mapping[str, int] = field(default_factory=dict)
  opset: int = 20
  after: Callable[[ir.Model], ir.Model] | None = None


def export(spec):
  """The bytes of the graph.

  Raises:
      ValueError: it holds an absolute path; and what torch raises.
  """
  dtype = DTYPES[spec.dtype]
  with no_init_weights():
    module, inputs = spec.make()
  module = module.eval()
  fill(module, dtype)
  inputs = {k: v.to(dtype) if v.is_floating_point() else v for k, v in inputs.items()}
  shapes: Any = None
  if spec.dynamic:
    shapes = tuple(dict(spec.dynamic.get(k, {})) for k in inputs)
    many = getattr(module, "many", 0)  # the last inputs are those of ``*args``
    if many:
      shapes = (*shapes[:-many], shapes[-many:])
  with torch.no_grad():
    program = torch.onnx.export(
      module, tuple(inputs.values()), input_names=list(inputs), dynamo=True, external_data=False,
      verbose=False, opset_version=spec.opset, dynamic_shapes=shapes,
    )  # fmt: skip
  assert program is not None
  model = program.model
  if spec.after:
    model = spec.after(model)
  return bare(model, spec.limits, spec.sizes)


def bare(model, limits, sizes):
  """The bytes of a graph without its weights."""
  for tensor in list(model.graph.initializers.values()):
    _leave_out(tensor)
  proto = strip(ir.serde.serialize_model(model))
  for tensor in proto.graph.initializer:
    if tensor.external_data:
      tensor.doc_string = _RULES[tensor.name]
      real_archive.place(tensor, 0, 0)
  said = json.dumps({"limits": dict(limits), "sizes": dict(sizes)}, separators=(",", ":"))
  proto.metadata_props.add(key=real_archive.INPUTS, value=said)
  data = proto.SerializeToString(deterministic=True)
  if leak := ABSOLUTE_PATH.search(data):
    raise ValueError(f"absolute path in the model: {data[leak.start() : leak.end() + 60]!r}")
  return data


_RULES: dict[str, str] = {}


def _leave_out(value):
  """Make an initializer an external tensor that says how it is distributed."""
  t = value.const_value
  if t.nbytes < LEFT_OUT_BYTES or t.dtype.name not in _DRAWN:
    return
  array = t.numpy()
  flat = array.ravel()
  flat = flat[:: max(1, flat.size // _SAMPLE)]
  if "INT" in t.dtype.name:
    low, high = (0, 255) if "4" in t.dtype.name else (int(flat.min()), int(flat.max()))
    rule = f"{low} {high}"
  else:
    flat = flat.astype(np.float64)
    if len(np.unique(flat)) <= FEW or not np.isfinite(flat).all():
      return
    rule = " ".join(f"{x:.4g}" for x in (flat.mean(), flat.std(), flat.min(), flat.max()))
  _RULES[value.name] = rule
  value.const_value = ir.ExternalTensor(
    real_archive.LOCATION, 0, t.nbytes, t.dtype, shape=t.shape, name=value.name
  )


def fill(module, dtype):
  """Draw parameters and running statistics; cast them. Repeated blocks: gigabytes take seconds."""
  rng = np.random.default_rng(0)
  block = torch.from_numpy(rng.standard_normal(1 << 20, dtype=np.float32))
  seen = set()
  with torch.no_grad():
    for name, p in module.named_parameters():
      if p.data_ptr() in seen and p.numel():
        continue
      seen.add(p.data_ptr())
      p.requires_grad_(False)
      if "A_log" in name or "relative_position" in name:
        p.data = p.data.to(dtype)
        continue
      data = torch.empty(p.shape, dtype=dtype)
      flat, (mean, deviation) = data.view(-1), _rule(name, p)
      drawn = (block * deviation + mean).to(dtype)
      for i in range(0, flat.numel(), len(drawn)):
        part = flat[i : i + len(drawn)]
        part.copy_(drawn[: len(part)])
      p.data = data
      seen.add(p.data_ptr())
    for name, b in list(module.named_buffers()):
      if name.endswith("running_mean"):
        b.copy_(0.1 * block[: b.numel()].view(b.shape))
      elif name.endswith("running_var"):
        b.copy_(1 + 0.2 * block[: b.numel()].view(b.shape).abs())
      if b.is_floating_point() and "inv_freq" not in name:
        owner, _, last = name.rpartition(".")
        # Anew: of a view, torch would still see what it is a view of, in its old type (DiT's positions).
        module.get_submodule(owner)._buffers[last] = b.detach().to(dtype).clone()


def _rule(name, p):
  """(mean, standard deviation): norms about one, biases about zero, matrices by their fan-in."""
  last = name.rsplit(".", 1)[-1]
  if p.ndim <= 1:
    return (0.0, 0.02) if "bias" in last or last.startswith("b_") else (1.0, 0.1)
  return 0.0, min(0.02 if p.ndim == 2 else 0.1, (p.numel() / p.shape[0]) ** -0.5)
