"""Saved graphs of Mirage (arXiv 2405.05751): the JSON of its search results as typed records.

A file is a list of kernel graphs, a kernel graph a list of operators in execution order. Tensors
are known by ``guid`` and carry their shape (``dim[:num_dims]``) and element type. An operator is

    kn_input_op, kn_output_op     the interface of the graph, in order
    kn_customized_op              a custom kernel with its block graph ``bgraph``
    any other kn_..._op           a library operation on whole tensors

and a block graph has a grid of up to three dimensions, one for-loop and operators ``tb_..._op``.
A ``tb_input_op`` cuts a device tensor: dimension ``input_map[g]`` into as many pieces as grid
dimension g has blocks, then dimension ``forloop_dim`` of what is left into ``forloop_range``
pieces (-1: not at all). A ``tb_output_op`` lays the tiles of the blocks side by side: grid
dimension g along dimension ``output_map[g]``. How values are stored (layouts, strides, offsets,
thread counts) is not read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mirage_onnx.errors import MirageError, Rejection, RejectionError
from mirage_onnx.ir.dtype import DType

#: Codes of element types.
_DTYPES = {920: DType.BF16, 921: DType.F16, 930: DType.F32, 940: DType.F64}
#: Tensors have at most this many dimensions.
_MAX_RANK = 4
_GRID = ("x", "y", "z")

Shape = tuple[int, ...]
Triple = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class SavedTensor:
  """A tensor as an operator names it; ``post``: a block tensor from after the loop."""

  guid: int
  shape: Shape
  dtype: DType
  post: bool


@dataclass(frozen=True, slots=True)
class SavedOp:
  """An operator without its prefix and suffix: ``matmul``, ``accum_nored``, ``input``.

  ``tensor``, ``maps``, ``loop_dim``: the device tensor and maps of a block input or output.
  ``block``: the block graph of a custom kernel.
  """

  op: str
  inputs: tuple[SavedTensor, ...]
  outputs: tuple[SavedTensor, ...]
  tensor: SavedTensor | None = None
  maps: Triple = (-1, -1, -1)
  loop_dim: int = -1
  block: SavedBlock | None = None


@dataclass(frozen=True, slots=True)
class SavedBlock:
  """``chunk``: elements that a reduction "to dimx" leaves of the last dimension."""

  grid: Triple
  loop: int
  chunk: int
  ops: tuple[SavedOp, ...]


@dataclass(frozen=True, slots=True)
class SavedGraph:
  """One kernel graph, operators in execution order."""

  ops: tuple[SavedOp, ...]


def read_saved(path: str | Path) -> tuple[SavedGraph | Rejection, ...]:
  """The graphs of a file; one that is not of the format is a SAVED_INVALID with its reason.

  Raises:
      MirageError: FILE_MISSING, FILE_UNREADABLE, or NOT_SAVED_GRAPHS.
  """
  path = Path(path)
  try:
    content = json.loads(path.read_text(encoding="utf-8"))
  except FileNotFoundError:
    raise MirageError("FILE_MISSING", f"{path} does not exist") from None
  except OSError as e:
    raise MirageError("FILE_UNREADABLE", f"{path}: {e.strerror}") from None
  except (ValueError, RecursionError) as e:
    raise MirageError("NOT_SAVED_GRAPHS", f"{path} is not JSON: {e}") from None
  if not isinstance(content, list):
    raise MirageError("NOT_SAVED_GRAPHS", f"{path} holds no list")
  return tuple(parse_saved(graph) for graph in content)


def parse_saved(graph: object) -> SavedGraph | Rejection:
  """One decoded kernel graph."""
  try:
    return SavedGraph(tuple(_op(o, "kn_") for o in _list(graph)))
  except RejectionError as e:
    return e.rejection
  except (KeyError, TypeError, ValueError, AttributeError) as e:
    return Rejection("SAVED_INVALID", f"not of the format: {type(e).__name__}: {e}")


def _list(x: object) -> Sequence[Any]:
  if not isinstance(x, list):
    raise TypeError(f"a list is needed, not {type(x).__name__}")
  return x


def _int(x: object) -> int:
  if not isinstance(x, int) or isinstance(x, bool):
    raise TypeError(f"a whole number is needed, not {x!r}")
  return x


def _triple(x: Mapping[str, object]) -> Triple:
  a, b, c = (_int(x[g]) for g in _GRID)
  return a, b, c


def _tensor(x: Mapping[str, Any], *, inside: bool) -> SavedTensor:
  rank = _int(x["num_dims"])
  shape = tuple(map(_int, _list(x["dim"])[:rank]))
  if not 1 <= rank <= _MAX_RANK or len(shape) != rank or min(shape) < 1:
    raise ValueError(f"{rank} dimensions {x['dim']}")
  code = _int(x["data_type"])
  if code not in _DTYPES:
    raise RejectionError("SAVED_UNSUPPORTED", f"element type {code} is no float type")
  post = x["after_accum"] if inside else False
  if not isinstance(post, bool):
    raise TypeError(f"after_accum is {post!r}")
  return SavedTensor(_int(x["guid"]), shape, _DTYPES[code], post)


def _op(x: Mapping[str, Any], prefix: str) -> SavedOp:
  name = str(x["op_type"])
  if not (name.startswith(prefix) and name.endswith("_op")):
    raise ValueError(f"{name!r} is no operator of this level")
  inside = prefix == "tb_"
  op = name[len(prefix) : -len("_op")]
  maps, loop_dim, tensor = (-1, -1, -1), -1, None
  if inside and op in ("input", "output"):
    maps = _triple(x[f"{op}_map"])
    tensor = _tensor(x["dtensor"], inside=False)
    loop_dim = _int(x["forloop_dim"]) if op == "input" else -1
    last = len(tensor.shape) - 1
    if not all(-1 <= d <= last for d in (*maps, loop_dim)):
      raise ValueError(f"a map names a dimension that {tensor.shape} does not have")
  return SavedOp(
    op=op,
    inputs=tuple(_tensor(i, inside=inside) for i in _list(x["input_tensors"])),
    outputs=tuple(_tensor(o, inside=inside) for o in _list(x["output_tensors"])),
    tensor=tensor,
    maps=maps,
    loop_dim=loop_dim,
    block=_block(x["bgraph"]) if op == "customized" and not inside else None,
  )


def _block(x: Mapping[str, Any]) -> SavedBlock:
  grid, loop, chunk = _triple(x["grid_dim"]), _int(x["forloop_range"]), _int(x["reduction_dimx"])
  if min(*grid, loop, chunk) < 1:
    raise ValueError(f"grid {grid}, loop {loop}, reduction_dimx {chunk}")
  return SavedBlock(grid, loop, chunk, tuple(_op(o, "tb_") for o in _list(x["operators"])))
