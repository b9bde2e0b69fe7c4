"""A model with kernels for several targets, as one of them sees it.

Where the library does not know a custom operator, ONNX Runtime takes the function body in its place, and in
that body there may be the operator of another target (``rewrite/call_body.py``). A view does the same to the
file: bodies stand for the nodes of all targets but one, so what reads models of one target reads it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import onnx

from mirage_onnx.custom_op.bodies import check_calls, pruned
from mirage_onnx.custom_op.model_nodes import Model, ModelFile
from mirage_onnx.custom_op.node_digest import is_custom
from mirage_onnx.custom_op.runtime import OP_PREFIX
from mirage_onnx.errors import MirageError
from mirage_onnx.importer.graph import nodes_of
from mirage_onnx.target import Target, suffixes_that_run


def suffixes_of(model: onnx.ModelProto) -> tuple[str, ...]:
  """The targets that have nodes in ``model`` or in its functions, in its own order."""
  nodes = (*nodes_of(model.graph), *(n for f in model.functions for n in f.node))
  used = {n.domain for n in nodes if is_custom(n.domain, n.op_type)}
  stated = [o.domain for o in model.opset_import if o.domain in used]
  return tuple(d.rpartition(".")[2] for d in (*stated, *sorted(used - {*stated})))


def own_suffix(target: Target, suffixes: Collection[str]) -> str:
  """The one of a file's targets whose kernels a GPU runs first, where it has several; "" where none is."""
  return next((s for s in suffixes_that_run(target) if s in suffixes), "")


def seen_by(model: onnx.ModelProto, suffix: str) -> onnx.ModelProto:
  """What a GPU of the target runs: its nodes, and the original's where it has none.

  Raises:
      MirageError: BUNDLE_INVALID, the functions cannot be put in the place of nodes.
  """
  check_calls(model)
  own = [f for f in model.functions if is_custom(f.domain, f.name)]
  return _inlined(model, [(f.domain, f.name) for f in own if f.domain.rpartition(".")[2] != suffix])


def _inlined(model: onnx.ModelProto, called: list[tuple[str, str]]) -> onnx.ModelProto:
  """A copy with these bodies in place of calls; a call that is now a node has the name of what it was in."""
  stand_for = {n.output[0]: n for n in nodes_of(model.graph) if is_custom(n.domain, n.op_type) and n.output}
  result = onnx.ModelProto()
  result.CopyFrom(model)
  if called:
    from onnx.inliner import inline_selected_functions

    try:
      result = inline_selected_functions(result, called)
    except Exception as error:  # onnx has no class for it
      raise MirageError("BUNDLE_INVALID", f"its functions: {' '.join(str(error).split())[:200]}") from error
  for node in nodes_of(result.graph):
    if is_custom(node.domain, node.op_type) and node.output and (old := stand_for.get(node.output[0])):
      node.name = old.name
      del node.metadata_props[:]
      node.metadata_props.extend(old.metadata_props)
  return result


def without(model: onnx.ModelProto, suffix: str, plans: Collection[int]) -> onnx.ModelProto:
  """``model`` in which one target has no kernels of these numbers: it runs there what others run.

  Raises:
      MirageError: as ``seen_by``.
  """
  check_calls(model)
  names = {f"{OP_PREFIX}{plan}" for plan in plans}
  own = [f for f in model.functions if is_custom(f.domain, f.name) and f.name in names]
  gone = [(f.domain, f.name) for f in own if f.domain.rpartition(".")[2] == suffix]
  return pruned(_inlined(model, gone), model)


def only(file: ModelFile, suffix: str) -> ModelFile:
  """``file`` as one of its targets sees it; itself, if it has kernels for no other.

  Raises:
      MirageError: BUNDLE_INVALID.
  """
  return file if suffixes_of(file.proto) == (suffix,) else replace(file, proto=seen_by(file.proto, suffix))


@contextmanager
def seen_file(model: Model, suffix: str) -> Iterator[Path]:
  """``seen_by`` of a model file as a file; beside it, where its weights are in other files.

  Raises:
      MirageError: FILE_MISSING, FILE_UNREADABLE, NOT_ONNX, BUNDLE_INVALID, OUTPUT_UNWRITABLE.
  """
  file = ModelFile.read(model)
  made = seen_by(file.proto, suffix)
  folder = file.external_folder
  try:
    with tempfile.NamedTemporaryFile(prefix=".mirage-", suffix=".onnx", dir=folder) as stream:
      stream.write(made.SerializeToString())
      stream.flush()
      yield Path(stream.name)
  except OSError as error:
    raise MirageError("OUTPUT_UNWRITABLE", f"{folder or tempfile.gettempdir()}: {error.strerror}") from error
