"""The custom nodes of a model file and their bundle, read without its other weights."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from onnx.external_data_helper import uses_external_data

from mirage_onnx.custom_op.bundle import Bundle, read_bundle
from mirage_onnx.custom_op.node_digest import check_digest, stated_digest
from mirage_onnx.custom_op.runtime import DOMAIN_PREFIX, OP_PREFIX
from mirage_onnx.errors import MirageError
from mirage_onnx.importer.external import check_file, check_stored, read_tensor, stored_tensors
from mirage_onnx.importer.graph import subgraphs

Model = str | os.PathLike[str] | bytes
#: The number of a plan: the library registers those that it can have.
_PLAN = re.compile(r"(0|[1-9][0-9]{0,3})\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class CustomNode:
  """One ``MuGraph_<plan>`` node; ``inputs`` without the bundle; ``digest``: what its attribute says.

  ``graph`` holds it; ``is_nested``: a subgraph, not the main graph.
  """

  name: str
  plan: int
  domain: str
  bundle: str
  inputs: tuple[str, ...]
  outputs: tuple[str, ...]
  graph: onnx.GraphProto
  is_nested: bool
  digest: str


@dataclass(frozen=True, slots=True)
class ModelFile:
  """A model without its external data, and the folder of that (None: a model in memory)."""

  proto: onnx.ModelProto
  folder: Path | None

  @classmethod
  def read(cls, model: Model, folder: str | None = None) -> ModelFile:
    """From a path or bytes; ``folder``: where the external data of bytes is.

    Raises:
        MirageError: FILE_MISSING, FILE_UNREADABLE, NOT_ONNX.
    """
    try:
      if isinstance(model, bytes):
        return cls(onnx.load_from_string(model), Path(folder) if folder else None)
      path = Path(model)
      check_file(path)
      proto = onnx.load(os.fspath(model), load_external_data=False)
      return cls(proto, path.resolve().parent)
    except OSError as error:
      raise MirageError("FILE_UNREADABLE", f"{str(model)!r}: {error.strerror or error}") from None
    except DecodeError as error:
      raise MirageError("NOT_ONNX", "the model is not ONNX protobuf") from error

  @property
  def external_folder(self) -> str | None:
    """The folder that onnxruntime has to know when it gets the model as bytes."""
    if self.folder and any(map(uses_external_data, stored_tensors(self.proto.graph))):
      return str(self.folder)
    return None

  def custom_nodes(self) -> tuple[CustomNode, ...]:
    """In the model's order, those of subgraphs after the node that holds them."""
    return tuple(_custom_nodes(self.proto.graph))

  def bundle(self) -> Bundle:
    """The bundle of the custom nodes; each has the digest of what it runs there.

    Raises:
        MirageError: BUNDLE_INVALID, PLAN_INVALID, EXTERNAL_DATA_MISSING, MODEL_INVALID.
    """
    nodes = self.custom_nodes()
    names = {node.bundle for node in nodes}
    found = [t for t in self.proto.graph.initializer if t.name in names]
    if len(names) != 1 or len(found) != 1:
      raise MirageError("BUNDLE_INVALID", "the custom nodes do not share one bundle")
    if found[0].data_type != onnx.TensorProto.UINT8:
      raise MirageError("BUNDLE_INVALID", "the bundle is no tensor of bytes")
    check_stored(found[0], self.folder)
    bundle = read_bundle(read_tensor(found[0], self.folder).tobytes())
    for node in nodes:
      try:
        check_digest(bundle, node.plan, node.digest)
      except MirageError as error:
        raise MirageError(error.code, f"node '{node.name}': {error.detail}") from None
    return bundle


def _custom_nodes(graph: onnx.GraphProto, is_nested: bool = False) -> Iterator[CustomNode]:
  for node in graph.node:
    number = node.op_type.removeprefix(OP_PREFIX)
    if node.domain.startswith(DOMAIN_PREFIX) and number != node.op_type and _PLAN.match(number):
      yield CustomNode(
        node.name or node.op_type,
        int(number),
        node.domain,
        node.input[0] if node.input else "",
        tuple(node.input[1:]),
        tuple(node.output),
        graph,
        is_nested,
        stated_digest(node),
      )
    for inner in subgraphs(node):
      yield from _custom_nodes(inner, is_nested=True)
