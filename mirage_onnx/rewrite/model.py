"""``rewrite_model``: a model and the regions to replace -> the model that calls the kernels.

Each region instance becomes one node ``<domain>::MuGraph_<plan>(bundle, i0, i1, ...)``; instances
of one plan share one model-local function of that name. Nothing else of the model changes.
"""

from collections.abc import Sequence, Set
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from mirage_onnx import __version__
from mirage_onnx.errors import MirageError
from mirage_onnx.importer.causal import implied
from mirage_onnx.importer.graph import reads
from mirage_onnx.rewrite.body import NO_SHAPES, Body, Shapes, build_body
from mirage_onnx.rewrite.call_body import call_body
from mirage_onnx.rewrite.constants import NOTHING, Constants, Folded
from mirage_onnx.rewrite.readers import Readers
from mirage_onnx.rewrite.replacement import BUNDLE_NAME, Replacement, WeightUse, internal
from mirage_onnx.rewrite.value_types import types_of
from mirage_onnx.rewrite.wiring import Wiring

#: Domain of the custom ops; a plan format version and the target's suffix follow.
DOMAIN_PREFIX = "ai.mirage.v1"
#: Model-local functions need this IR version.
MIN_IR_VERSION = 8


class BodyMaker:
  """Makes the function body of each region instance of one model.

  Instances of one plan must agree in its key. Equal kernels may serve bodies that differ, e.g.
  ``Mul(a, b)`` and ``Mul(b, a)``: number plans by (kernel, key of the body).
  """

  def __init__(
    self,
    model: onnx.ModelProto,
    base_dir: Path | None = None,
    shapes: Shapes = NO_SHAPES,
    folded: Folded = NOTHING,
    half: Set[str] = frozenset(),
  ) -> None:
    self._wiring, self.opsets = Wiring(model), _opsets(model)
    self.constants, self.readers = Constants(model, base_dir, folded), Readers(model, half)
    self._shapes = shapes

  def body(self, replacement: Replacement) -> Body:
    """The body of one instance.

    Raises:
        MirageError: INTERNAL.
    """
    nodes = [self._wiring.proto(node) for node in self._wiring.find(replacement.nodes)]
    missing = self.readers.missing(nodes, replacement.outputs)
    return build_body(nodes, replacement, self.constants, self.opsets, self._shapes, missing)


def rewrite_model(
  model: onnx.ModelProto,
  replacements: Sequence[Replacement],
  bundle: bytes,
  *,
  target_suffix: str = "sm90a",
  other_suffixes: Sequence[str] = (),
  maker: BodyMaker | None = None,
  taken: Set[str] = frozenset(),
) -> onnx.ModelProto:
  """A new model with every region replaced; ``model`` is not modified.

  ``other_suffixes``: of further targets, in their order. ``maker``: of this model; it knows more than
  the model says, and makes the bodies that replacements lack; ``taken``: names that nothing new may have.
  References of untouched weights stay as they are.

  Raises:
      MirageError: INTERNAL for a region that is not convex; EXTERNAL_DATA_MISSING;
          OPTION_INVALID for a model rewritten before.
  """
  result = onnx.ModelProto()
  result.CopyFrom(model)
  if replacements:
    rewriter = _Rewriter(model, result, target_suffix, maker or BodyMaker(model))
    rewriter.taken |= taken
    for replacement in replacements:
      rewriter.replace(replacement)
    rewriter.finish(bundle, (target_suffix, *other_suffixes))
  return result


class _Rewriter:
  def __init__(self, model: onnx.ModelProto, result: onnx.ModelProto, suffix: str, maker: BodyMaker) -> None:
    self.model, self.result, self.suffix, self.maker = model, result, suffix, maker
    self.wiring = Wiring(model)
    self.constants, self.opsets = maker.constants, maker.opsets
    self.functions: dict[int, onnx.FunctionProto] = {}
    self.domains = set[str]()
    self.stored: dict[WeightUse, onnx.TensorProto] = {}
    self.outputs: list[str] = []
    self.workspaces: list[str] = []
    self.taken = _names(model)
    for entry in (*model.functions, *model.graph.node):
      if entry.domain.startswith("ai.mirage."):
        raise MirageError(
          "OPTION_INVALID",
          "the model was already optimized by mirage-onnx; optimize the original model",
        )
    if BUNDLE_NAME in self.taken:
      raise internal(f"the model already has a value {BUNDLE_NAME!r}")

  def replace(self, replacement: Replacement) -> None:
    nodes = self.wiring.find(replacement.nodes)
    body = self._body(replacement)
    first = replacement.nodes[0]
    node = onnx.NodeProto(
      op_type=replacement.op_type,
      domain=self._domain(replacement),
      name=self._fresh(f"mirage/{replacement.plan}/{first}"),
      input=[BUNDLE_NAME, *(self._stored(replacement, i) for i in replacement.inputs), *body.operands],
      output=replacement.outputs,
    )
    self.outputs += replacement.outputs
    if replacement.workspace:
      self.workspaces.append(self._fresh(f"{node.name}/workspace"))
      node.output.append(self.workspaces[-1])
    node.metadata_props.add(key="pkg.mirage_onnx.region", value=",".join(replacement.nodes))
    self.wiring.replace(nodes, node)

  def _domain(self, replacement: Replacement) -> str:
    domain = f"{DOMAIN_PREFIX}.{replacement.suffix or self.suffix}"
    self.domains.add(domain)
    return domain

  def _body(self, replacement: Replacement) -> Body:
    """The body of an instance: its nodes, or the instance for another target, whose body is made too."""
    inner = replacement.inner
    if inner is None:
      body = replacement.body or self.maker.body(replacement)
    else:
      operands = self._body(inner).operands
      body = call_body(replacement, inner, operands, self._domain(inner), self.opsets)
    self._share(replacement, body.function)
    return body

  def _share(self, replacement: Replacement, function: onnx.FunctionProto) -> None:
    body = onnx.FunctionProto()
    body.CopyFrom(function)
    body.name, body.domain = replacement.op_type, self._domain(replacement)
    body.doc_string = "The original nodes; they run where the kernel cannot."
    first = self.functions.setdefault(replacement.plan, body)
    if first.SerializeToString(deterministic=True) != body.SerializeToString(deterministic=True):
      raise internal(
        f"{replacement.op_type} would stand for two different bodies (at node {replacement.nodes[0]!r})"
      )

  def _stored(self, replacement: Replacement, value: str) -> str:
    """The tensor that the custom node reads for an input of the region."""
    use = replacement.weight(value)
    if use is None:
      mask = None if value in self.maker.readers.nodes else implied(value)
      if mask is None:
        return value
      use = WeightUse(value, tuple(range(len(mask.dims))))
    if use not in self.stored:
      swapped = (*range(len(use.perm) - 2), len(use.perm) - 1, len(use.perm) - 2)
      suffix = ".kmajor" if use.perm == swapped else ".perm" + "_".join(map(str, use.perm))
      suffix = ("" if use.is_in_order else suffix) + (".bytes" if use.four else "")
      name = self._fresh(value + suffix)
      self.stored[use] = self.constants.permuted(use, name)
    return self.stored[use].name

  def _fresh(self, name: str) -> str:
    candidate, count = name, 1
    while candidate in self.taken:
      candidate, count = f"{name}.{count}", count + 1
    self.taken.add(candidate)
    return candidate

  def finish(self, bundle: bytes, suffixes: Sequence[str]) -> None:
    graph = self.result.graph
    before = {name for node in graph.node for name in reads(node)}
    nodes = self.wiring.ordered()
    types = types_of(self.model, self.outputs)
    del graph.node[:]
    graph.node.extend(nodes)
    after = {name for node in nodes for name in reads(node)}
    kept = after | {value.name for value in (*graph.output, *graph.input)}
    made = {name for node in nodes for name in node.output}

    unused = before - kept
    _filter(graph.initializer, lambda t: t.name not in unused)
    _filter(graph.sparse_initializer, lambda t: t.values.name not in unused)
    gone = {name for node in self.model.graph.node for name in node.output} - made
    gone |= unused
    _filter(graph.value_info, lambda v: v.name not in gone)
    _filter(graph.quantization_annotation, lambda a: a.tensor_name not in gone)

    graph.initializer.extend(self.stored.values())
    kernels = numpy_helper.from_array(np.frombuffer(bundle, np.uint8), BUNDLE_NAME)
    graph.initializer.append(kernels)
    self._add_types(types)
    self.result.functions.extend(self.functions[plan] for plan in sorted(self.functions))
    for domain in (f"{DOMAIN_PREFIX}.{suffix}" for suffix in dict.fromkeys(suffixes)):
      if domain in self.domains and domain not in self.opsets:
        self.result.opset_import.add(domain=domain, version=1)
    self.result.ir_version = max(self.result.ir_version, MIN_IR_VERSION)
    self.result.metadata_props.add(key="mirage_onnx.version", value=__version__)

  def _add_types(self, types: dict[str, onnx.TypeProto]) -> None:
    """ONNX Runtime asks for the element type of every output of a custom node."""
    graph = self.result.graph
    stated = {v.name: v for v in (*graph.value_info, *graph.output)}
    for name in self.outputs:
      value = stated.get(name)
      if value is None:
        graph.value_info.add(name=name).type.CopyFrom(types[name])
      elif not value.type.tensor_type.elem_type:
        value.type.CopyFrom(types[name])
    for name in self.workspaces:
      value = graph.value_info.add(name=name)
      value.type.tensor_type.elem_type = onnx.TensorProto.UINT8
      value.type.tensor_type.shape.dim.add()


def _filter(field, keep) -> None:  # type: ignore[no-untyped-def]
  """Drop the messages of a repeated field that ``keep`` refuses."""
  for i in range(len(field) - 1, -1, -1):
    if not keep(field[i]):
      del field[i]


def _opsets(model: onnx.ModelProto) -> dict[str, int]:
  return {("" if o.domain == "ai.onnx" else o.domain): o.version for o in model.opset_import}


def _names(model: onnx.ModelProto) -> set[str]:
  graph = model.graph
  names = {v.name for v in (*graph.input, *graph.output, *graph.initializer)}
  names |= {t.values.name for t in graph.sparse_initializer}
  for node in graph.node:
    names |= {node.name, *node.output, *reads(node)}
  return names
