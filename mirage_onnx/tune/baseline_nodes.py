"""The ONNX nodes of a region as canonical text: the key under which their time is remembered.

Names are those of the order of appearance, so equal nodes of any layer and any model have one text.
Large constants count by type and shape only (``ort_run.HELD``): a time does not depend on their values.
"""

import hashlib
from collections.abc import Callable
from math import prod

from onnx import AttributeProto, ModelProto, TensorProto, numpy_helper

from mirage_onnx.tune.ort_run import HELD


def canonical_nodes(model: ModelProto) -> str:
  """A line per opset, input, constant, node and output of a model as ``ort_run.region_model`` makes."""
  names: dict[str, str] = {}

  def short(name: str) -> str:
    return names.setdefault(name, f"v{len(names)}") if name else "-"

  graph = model.graph
  lines = sorted(f"opset {o.domain or 'ai.onnx'} {o.version}" for o in model.opset_import)
  for i in graph.input:
    t = i.type.tensor_type
    lines.append(f"in {short(i.name)} {t.elem_type} {[d.dim_value for d in t.shape.dim]}")
  for t in sorted(graph.initializer, key=_first_reader(model)):
    lines.append(f"constant {short(t.name)} {_tensor(t)}")
  for n in graph.node:
    attributes = " ".join(sorted(f"{a.name}={_attribute(a)}" for a in n.attribute))
    inputs, outputs = (",".join(map(short, x)) for x in (n.input, n.output))
    lines.append(f"{outputs} = {n.domain or 'ai.onnx'}::{n.op_type}({inputs}) {attributes}".rstrip())
  lines += [f"out {short(o.name)}" for o in graph.output]
  return "\n".join(lines) + "\n"


def _first_reader(model: ModelProto) -> Callable[[TensorProto], tuple[int, int]]:
  """The place at which a constant is read first: its order, whatever it is called."""
  places: dict[str, tuple[int, int]] = {}
  for k, n in enumerate(model.graph.node):
    for at, name in enumerate(n.input):
      places.setdefault(name, (k, at))
  return lambda t: places.get(t.name, (len(model.graph.node), 0))


def _tensor(t: TensorProto) -> str:
  values = f" {numpy_helper.to_array(t).tolist()}" if prod(t.dims) <= HELD else ""
  return f"{t.data_type} {[*t.dims]}{values}"


def _attribute(a: AttributeProto) -> str:
  """Everything that it says; of a subgraph or a large tensor a hash."""
  if a.type == AttributeProto.TENSOR:
    return _tensor(a.t)
  text = a.SerializeToString(deterministic=True)
  return hashlib.sha256(text).hexdigest()[:16]
