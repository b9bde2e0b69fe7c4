"""Inputs of a model of real size: what it takes, from what its file says of them."""

import json

import numpy as np
import onnx

from mirage_onnx.custom_op.compare_inputs import size_of

#: Of files that say nothing: exclusive ends of integer inputs, sizes of dynamic dimensions.
LIMITS = {"input_ids": 128, "position_ids": 16, "attention_mask": 2}
SIZES = {
  "batch_size": 1, "sequence_length": 1, "past_sequence_length": 24, "past_sliding_length": 16,
  "total_sequence_length": 25, "kv_cache_dim": 16,
}  # fmt: skip
#: ``plain``: nothing is masked. ``hard``: the last tokens of every row are, and one channel in 16 is
#: an outlier.
KINDS = ("plain", "hard")
_OUTLIER = 2.0**5
_SAID = "inputs"


def said(model):
  """(ends of integer inputs, sizes of dimensions) that the metadata or the defaults give."""
  found = {p.key: p.value for p in model.metadata_props}.get(_SAID)
  data = json.loads(found) if found else {"limits": LIMITS, "sizes": SIZES}
  return data.get("limits", {}), data.get("sizes", {})


def draw(model, kind, seed=0):
  """Arrays by name for a model (whose weights may be elsewhere)."""
  limits, sizes = said(model)
  rng = np.random.default_rng([seed, KINDS.index(kind)])
  weights = {t.name for t in model.graph.initializer}
  return {
    value.name: _drawn(rng, kind, value, limits, sizes)
    for value in model.graph.input
    if value.name not in weights
  }


def _drawn(rng, kind, value, limits, sizes):
  tensor = value.type.tensor_type
  dims = [d.dim_value if d.HasField("dim_value") else d.dim_param for d in tensor.shape.dim]
  shape = tuple(size_of(d, sizes) for d in dims)
  dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
  if dtype.kind in "iub":
    if "mask" in value.name:
      mask = np.ones(shape, dtype)
      if kind == "hard" and mask.ndim and mask.shape[-1] > 1:
        mask[..., -max(1, mask.shape[-1] // 8) :] = 0
        mask[..., -1] = 1 if _is_step(mask, limits) else 0
      return mask
    return rng.integers(0, limits.get(value.name, 2), shape).astype(dtype)
  x = rng.standard_normal(shape, dtype=np.float32)
  if kind == "hard" and x.ndim:
    x = x * np.where(rng.random(x.shape[-1]) < 1 / 16, np.float32(_OUTLIER), np.float32(1))
  return x.astype(dtype)


def _is_step(mask, limits):
  """Of a decode step the last token is the one that is computed."""
  return "position_ids" in limits and mask.ndim == 2
