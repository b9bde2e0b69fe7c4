"""Open a model and refuse, with a code and one sentence, what is no usable ONNX model."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from google.protobuf.message import DecodeError
from onnx import ModelProto, NodeProto, TensorProto

from mirage_onnx.errors import MirageError
from mirage_onnx.importer import shapes
from mirage_onnx.importer.constant_nodes import constant_nodes
from mirage_onnx.importer.external import check_file, check_stored, read_tensor, stored_tensors
from mirage_onnx.importer.functions import check_attributes, check_functions
from mirage_onnx.importer.graph import (
  check_names,
  check_text,
  label,
  subgraphs,
  topological_order,
  unique_names,
)
from mirage_onnx.importer.inferring import known_of, with_sizes
from mirage_onnx.importer.old_inputs import without_old_inputs
from mirage_onnx.importer.opening import Flat, opened
from mirage_onnx.importer.parsing import parse_model
from mirage_onnx.importer.section_types import Scope
from mirage_onnx.importer.split_caches import split_caches
from mirage_onnx.importer.split_norms import split_norms
from mirage_onnx.importer.split_projections import split_projections
from mirage_onnx.importer.split_windows import split_windows
from mirage_onnx.importer.steps_apart import steps_apart
from mirage_onnx.ir.program import Tensor
from mirage_onnx.onnx_process import Onnx, start_early

#: Versions of the default domain whose operators this version understands.
OPSETS = range(7, 27)
#: protobuf refuses messages above this size.
PROTOBUF_LIMIT = 2**31 - 1


@dataclass(frozen=True, eq=False)
class LoadedModel:
  """A model that passed every check.

  ``given`` is as in the file, without external data; ``proto`` is that without the inputs of
  ``old_inputs``. Where it has subgraphs, ``proto`` is the ``flat`` graph of all of them (``opening``),
  and ``nested`` what it was before.
  ``order`` are indices of ``graph.node``, producers first; ``node_names`` are unique, one per
  node in the order of the file; ``tensors`` has every named value of the graph;
  ``folded``: what nodes make of constants and shapes.
  """

  proto: ModelProto
  path: Path | None
  base_dir: Path | None
  opset: int
  order: tuple[int, ...]
  node_names: tuple[str, ...]
  tensors: Mapping[str, Tensor] = field(repr=False)
  folded: Mapping[str, TensorProto] = field(repr=False, default_factory=dict)
  given: ModelProto = field(repr=False, default_factory=ModelProto)
  nested: ModelProto | None = field(repr=False, default=None)
  flat: Flat | None = field(repr=False, default=None)

  @cached_property
  def node_index(self) -> dict[str, int]:
    """Node name -> its place in ``proto.graph.node``."""
    return {name: i for i, name in enumerate(self.node_names)}

  def node(self, name: str) -> NodeProto:
    return self.proto.graph.node[self.node_index[name]]

  @cached_property
  def initializers(self) -> dict[str, TensorProto]:
    """Initializers that are not graph inputs: no run can change them."""
    inputs = {i.name for i in self.proto.graph.input}
    return {t.name: t for t in self.proto.graph.initializer if t.name not in inputs}

  def read(self, tensor: TensorProto) -> np.ndarray:
    """The values of a tensor of this model, from its external file if it has one."""
    return read_tensor(tensor, self.base_dir)

  @property
  def known(self) -> "PickledModel":
    """What another process need not find out again."""
    folded = {k: t.SerializeToString() for k, t in self.folded.items()}
    return PickledModel(self.base_dir, self.opset, self.order, self.node_names, dict(self.tensors), folded)


@dataclass(frozen=True, slots=True)
class PickledModel:
  """A ``LoadedModel`` without its protos, to be pickled; ``folded`` as bytes."""

  base_dir: Path | None
  opset: int
  order: tuple[int, ...]
  node_names: tuple[str, ...]
  tensors: dict[str, Tensor]
  folded: dict[str, bytes]

  def loaded(self, proto: ModelProto) -> LoadedModel:
    """The model again; ``proto``: its, where its weights may lie elsewhere."""
    folded = {k: TensorProto.FromString(t) for k, t in self.folded.items()}
    return LoadedModel(
      proto, None, self.base_dir, self.opset, self.order, self.node_names, self.tensors, folded
    )


def load_model(
  source: str | Path | ModelProto,
  base_dir: str | Path | None = None,
  *,
  steps: Mapping[str, int] | None = None,
) -> LoadedModel:
  """Load a model file, or take a model in memory, and check it.

  ``base_dir`` is where the external data of a model in memory is; ``steps``: sizes in those of a
  decoder, which get a branch (``steps_apart``); None: they get none.

  Raises:
      MirageError: FILE_MISSING, FILE_UNREADABLE, NOT_ONNX, MODEL_INVALID, MODEL_LIMIT,
          OPSET_UNSUPPORTED or EXTERNAL_DATA_MISSING.
  """
  start_early()
  if isinstance(source, ModelProto):
    path, proto, what = None, source, "the model in memory"
    folder = Path(base_dir) if base_dir is not None else None
  else:
    path = Path(source)
    proto, what, folder = _parse(path), f"{str(path)!r}", path.parent
  if not proto.HasField("graph") or not (proto.graph.node or proto.graph.output):
    raise MirageError("NOT_ONNX", f"{what} has no graph")
  given, proto = proto, without_old_inputs(proto)
  proto = split_caches(proto if steps is None else steps_apart(proto, steps))
  proto = split_norms(split_projections(proto))
  graph = proto.graph
  check_text(graph)
  check_functions(proto)
  check_attributes(proto)
  opset = _opset(proto)
  check_names(graph)
  order = topological_order(graph)
  for tensor in stored_tensors(graph):
    check_stored(tensor, folder)
  onnx = Onnx()
  shapes.check_nodes(proto, opset, onnx)

  def read(tensor: TensorProto) -> np.ndarray:
    return read_tensor(tensor, folder)

  known = known_of(proto, order, opset, read, onnx=onnx)
  tensors, folded, told = with_sizes(proto, order, opset, read, onnx, *known)
  apart = split_windows(proto, opset, tensors)  # which needs the shapes
  if apart is not proto:
    proto, graph = apart, apart.graph
    order = topological_order(graph)
    known = known_of(proto, order, opset, read, onnx=onnx)
    tensors, folded, told = with_sizes(proto, order, opset, read, onnx, *known)
  if any(map(subgraphs, graph.node)):
    constants = {t.name: t for t in graph.initializer} | constant_nodes(graph.node)
    for value in graph.input:
      constants.pop(value.name, None)
    given_dims = frozenset(d for i in graph.input for d in tensors[i.name].shape or ())
    main = Scope(proto, order, tensors, folded, constants, given=given_dims, told=told)
    flat = opened(proto, main, opset, read)
    if flat is not None:
      names = unique_names(flat.proto.graph)
      return LoadedModel(
        flat.proto, path, folder, opset, flat.order, names, flat.tensors, flat.folded, given, proto, flat
      )
  names = unique_names(graph)
  return LoadedModel(proto, path, folder, opset, order, names, tensors, folded, given)


def _parse(path: Path) -> ModelProto:
  check_file(path)
  try:
    size = path.stat().st_size
    if size > PROTOBUF_LIMIT:
      raise MirageError("NOT_ONNX", f"{str(path)!r} is larger than 2 GiB in one file")
    model = parse_model(path)
  except OSError as e:
    raise MirageError("FILE_UNREADABLE", f"{str(path)!r}: {e.strerror or 'cannot be read'}") from None
  except DecodeError:
    raise MirageError("NOT_ONNX", f"{str(path)!r} is not a protobuf message, or is cut off") from None
  if not size and not model.ListFields():
    raise MirageError("NOT_ONNX", f"{str(path)!r} is empty")
  return model


def _opset(proto: ModelProto) -> int:
  """The version of the default domain; the newest known where no node uses that domain."""
  versions: dict[str, int] = {}
  for entry in proto.opset_import:
    if not isinstance(entry.domain, str):
      raise MirageError("MODEL_INVALID", f"the name {entry.domain!r} is not UTF-8 text")
    domain = "" if entry.domain == "ai.onnx" else entry.domain
    if versions.setdefault(domain, entry.version) != entry.version:
      name = domain or "the default domain"
      raise MirageError("MODEL_INVALID", f"two opset versions are imported for {name}")
  found = versions.get("")
  lowest, highest = OPSETS.start, OPSETS.stop - 1
  for index, node in enumerate(proto.graph.node):
    domain = shapes.domain_of(node)
    if domain not in versions:
      if domain == "":
        raise MirageError(
          "OPSET_UNSUPPORTED",
          f"the model imports no opset of the default domain, which node {label(node, index)} needs",
        )
      raise MirageError(
        "MODEL_INVALID",
        f"node {label(node, index)} is of domain {domain!r}, which the model does not import",
      )
  if found is not None and found not in OPSETS:
    raise MirageError(
      "OPSET_UNSUPPORTED", f"the model has opset {found}, supported are {lowest} to {highest}"
    )
  return highest if found is None else found
