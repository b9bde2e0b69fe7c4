"""Which onnxruntime is installed, and what a model asks of it; nothing here makes a session."""

import os
from collections.abc import Iterator
from importlib import metadata
from types import ModuleType
from typing import Any

from mirage_onnx.errors import MirageError

DOMAIN_PREFIX, _PRESENT = "ai.mirage.", "ai.mirage.v1."
OP_PREFIX = "MuGraph_"
#: onnxruntime's entry for the folder of external data of a model that is given as bytes.
EXTERNAL_FOLDER_KEY = "session.model_external_initializers_file_folder_path"


def import_onnxruntime() -> ModuleType:
  """Imports onnxruntime, refusing installations that are known not to work.

  Raises:
      MirageError: ORT_MISSING, or ORT_CONFLICT when two of its packages overwrite each other.
  """
  installed = [name for name in ("onnxruntime", "onnxruntime-gpu") if _is_installed(name)]
  if len(installed) > 1:
    raise MirageError(
      "ORT_CONFLICT",
      "onnxruntime and onnxruntime-gpu share their files; run: "
      "pip uninstall -y onnxruntime onnxruntime-gpu && pip install onnxruntime-gpu",
    )
  try:
    import onnxruntime  # here: most of this program works without it
  except ImportError as error:
    raise MirageError(
      "ORT_MISSING",
      f"import onnxruntime failed ({error}); run: pip install onnxruntime-gpu (or onnxruntime, for CPU only)",
    ) from error
  return onnxruntime


def _is_installed(name: str) -> bool:
  try:
    metadata.distribution(name)
  except metadata.PackageNotFoundError:
    return False
  return True


def custom_nodes(model: str | bytes | os.PathLike[str]) -> tuple[str, ...] | None:
  """Names of the model's MuGraph nodes, subgraphs included, without reading external data.

  Returns None for a model that is not ONNX protobuf (ORT's own format): nothing is known of it.
  A node without a name is listed under its op type.
  """
  proto = _graph_of(model)
  if proto is None:
    return None
  return tuple(
    node.name or node.op_type
    for node in _walk(proto.graph)
    if node.domain.startswith(DOMAIN_PREFIX) and node.op_type.startswith(OP_PREFIX)
  )


def kernel_suffixes(model: str | bytes | os.PathLike[str]) -> tuple[str, ...]:
  """What the model says that it has kernels for, as the last parts of domains: ``sm90a``, ``sm86_x46``."""
  proto = _graph_of(model)
  domains = [o.domain for o in proto.opset_import] if proto is not None else []
  return tuple(d.removeprefix(_PRESENT) for d in domains if d.startswith(f"{DOMAIN_PREFIX}v"))


def _graph_of(model: str | bytes | os.PathLike[str]) -> Any:
  """The model without its external data; None where it is no ONNX protobuf."""
  import onnx  # here, as above: registering needs neither
  from google.protobuf.message import DecodeError

  try:
    if isinstance(model, bytes):
      return onnx.load_from_string(model)
    if not os.path.isfile(model):
      return None  # ORT says what is wrong with the path
    return onnx.load(os.fspath(model), load_external_data=False)
  except (DecodeError, OSError):
    return None


def _walk(graph: Any) -> Iterator[Any]:
  for node in graph.node:
    yield node
    for attribute in node.attribute:
      for inner in (attribute.g, *attribute.graphs):
        yield from _walk(inner)
