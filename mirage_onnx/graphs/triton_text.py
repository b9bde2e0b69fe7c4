"""A µGraph as a program in Triton: its kernels and a function that launches them on torch tensors.

The tiles are those of the µGraph's numbers. Triton has no clusters and plans registers, shared memory and the
order of loads by itself, so the program is the µGraph's algorithm, not its schedule. How it does on a GPU:
``bench/triton_programs.py``.
"""

from collections.abc import Mapping
from math import prod

from mirage_onnx.errors import RejectionError
from mirage_onnx.graphs.triton_functions import TANH
from mirage_onnx.graphs.triton_kernel import TYPES, kernel_text
from mirage_onnx.graphs.triton_tiles import Tiles
from mirage_onnx.ir import Candidate, KTensor, Program, Region, ugraph_extents
from mirage_onnx.ir.region import RegionTensor
from mirage_onnx.target import Target

_HEAD = '''\
"""A µGraph of mirage-onnx in Triton: ``optimized_graph(inputs)`` runs it on torch tensors.

{comment}
"""

import torch
import triton
import triton.language as tl

'''


def triton_text(program: Program, region: Region, candidate: Candidate, comment: str, target: Target) -> str:
  """The program; its ``optimized_graph`` takes and returns what that of an ``OptimizedGraph`` does.

  Raises:
      RejectionError: TRITON_UNSUPPORTED, with what Triton cannot express.
  """
  graph = candidate.ugraph
  extents = ugraph_extents(graph, candidate.params, region.extents)
  tensors = {t.name: t for t in graph.tensors}
  for t in (*region.inputs, *region.outputs):
    if t.view is not None or t.picks:
      raise RejectionError("TRITON_UNSUPPORTED", f"{t.name} is a view of another tensor")
  memory = {t.name: t.axes for t in region.inputs}
  tensors = {n: KTensor(n, t.dtype, memory.get(n, t.axes), t.role, t.windows) for n, t in tensors.items()}
  kernels, launches = [], []
  for kernel, params in zip(graph.kernels, candidate.params, strict=True):
    tiles = Tiles(kernel, params, extents)
    kernels.append(kernel_text(kernel, tiles, tensors, target.smem_bytes))
    grid = (*tiles.grid, 1, 1)[:3]
    warps = 1 << max(0, min(params.warps, 16).bit_length() - 1)
    how = f"num_warps={warps}"
    if (size := tiles.bytes_of_an_iteration) > 0:
      how += f", num_stages={max(1, min(params.stages, target.smem_bytes // size))}"
    launches.append(f"  {kernel.name}[{grid}]({', '.join(kernel.touched)}, {how})")
  body = "\n\n".join(kernels)
  parts = [_HEAD.format(comment=comment), TANH + "\n\n" if "tanh(" in body else "", body, "\n\n"]
  return "".join(parts) + _launcher(program, region, tensors, extents, launches)


def _launcher(
  program: Program,
  region: Region,
  tensors: Mapping[str, KTensor],
  extents: Mapping[str, int],
  launches: list[str],
) -> str:
  """``SHAPES``, ``DTYPES`` and ``optimized_graph``."""
  given = {t.tensor.name: t for t in region.inputs}
  made = {t.tensor.name: t for t in region.outputs}
  names = program.inputs
  shapes = {n: _shape(program, n) for n in names}
  lines = [
    f"SHAPES = {[shapes[n] for n in names]}",
    f"DTYPES = [{', '.join(f'torch.{program_type(program, n)}' for n in names)}]",
    "",
    "",
    "def optimized_graph(inputs):",
    "  for x, shape, dtype in zip(inputs, SHAPES, DTYPES, strict=True):",
    "    if tuple(x.shape) != shape or x.dtype != dtype:",
    '      raise ValueError(f"{dtype} of {shape} is wanted, {x.dtype} of {tuple(x.shape)} is given")',
    f"  {', '.join(_name(given, n) for n in names)}, = (x.contiguous() for x in inputs)",
    "  device = inputs[0].device",
  ]
  for t in tensors.values():
    if t.role not in ("input", "weight"):
      shape = next((_shape(program, o.tensor.name) for o in region.outputs if o.name == t.name), None)
      size = shape if shape is not None else (prod(extents[a] for a in t.axes),)
      lines.append(f"  {t.name} = torch.empty({size}, dtype=torch.{TYPES[t.dtype]}, device=device)")
  lines += [*launches, f"  return [{', '.join(_name(made, n) for n in program.outputs)}]"]
  return "\n".join(lines) + "\n"


def _shape(program: Program, name: str) -> tuple[int, ...]:
  shape = program.tensors[name].shape
  assert shape is not None
  return tuple(int(str(d)) for d in shape)


def program_type(program: Program, name: str) -> str:
  """The element type of an input, by torch's name.

  Raises:
      RejectionError: TRITON_UNSUPPORTED.
  """
  dtype = program.tensors[name].dtype
  if dtype not in TYPES:
    raise RejectionError("TRITON_UNSUPPORTED", f"{name} is of {dtype}")
  return TYPES[dtype]


def _name(found: Mapping[str, RegionTensor], name: str) -> str:
  """Of a tensor in the region; an input that nothing reads has none."""
  return found[name].name if name in found else f"unread_{name}"
