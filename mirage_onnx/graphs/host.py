"""A µGraph run on numpy arrays: its definition, with every value rounded to its element type.

The interpreter is that of the verifier, at the real extents. It is no fast way to compute, but it
needs nothing, and shows what the kernels will round to (sums inside one operation round once).

It computes all blocks of a kernel at once. Blocks are independent, so a kernel whose values would
take too much memory that way is run a part of its grid after the other.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from mirage_onnx.ir import (
  Candidate,
  Kernel,
  KernelParams,
  KTensor,
  Phase,
  Region,
  UGraph,
  part_axis,
  ugraph_extents,
)
from mirage_onnx.verify.domain import Rounded
from mirage_onnx.verify.interpret_ugraph import interpret_ugraph
from mirage_onnx.verify.named import NamedArray

#: Elements of one block value over all blocks (float64) beyond which the grid is run in parts.
MOST_ELEMENTS = 1 << 25


def run_on_host(
  region: Region,
  candidate: Candidate,
  extents: Mapping[str, int],
  inputs: Mapping[str, np.ndarray],
  *,
  most_elements: int = MOST_ELEMENTS,
) -> dict[str, np.ndarray]:
  """Output name -> values over its axes; ``inputs`` go by the names of the graph's inputs."""
  graph = candidate.ugraph
  every = ugraph_extents(graph, candidate.params, extents)
  values = {}
  for i in region.inputs:
    data = inputs[i.tensor.name].astype(np.float64)
    values[i.name] = NamedArray(data.reshape(1, *(extents[a] for a in i.axes)), i.axes)
  tensors = {t.name: t for t in graph.tensors}
  with np.errstate(all="ignore"):  # what overflows is inf, as on a GPU
    for kernel, params in zip(graph.kernels, candidate.params, strict=True):
      launch = _Launch(kernel, params, tensors)
      values.update(launch.run(values, every, most_elements))
  return {o.tensor.name: values[o.name].aligned(o.axes)[0].astype(o.dtype.numpy) for o in region.outputs}


@dataclass(frozen=True, slots=True)
class _Launch:
  """One kernel as a µGraph of its own: what it loads is input, what it saves is output."""

  kernel: Kernel
  params: KernelParams
  tensors: Mapping[str, KTensor]

  def run(
    self, values: Mapping[str, NamedArray], extents: Mapping[str, int], most_elements: int
  ) -> dict[str, NamedArray]:
    """The tensors that the kernel saves."""
    dim = self._divisible() if self._elements(extents) > most_elements else None
    if dim is None:
      return self._whole(values, extents)
    axis, tile = self.kernel.grid[dim], self.params.tile[dim]
    parts = -(-self._elements(extents) // most_elements)
    step = tile * max(1, -(-extents[axis] // tile) // parts)
    found = [
      self._whole({n: _cut(v, axis, start, step) for n, v in values.items()}, sizes)
      for start, sizes in self._pieces(extents, axis, step)
    ]
    names = {axis, part_axis(axis, self.kernel.name)}
    return {n: _join([f[n] for f in found], names) for n in found[0]}

  def _pieces(self, extents: Mapping[str, int], axis: str, step: int) -> Iterator[tuple[int, dict[str, int]]]:
    own = part_axis(axis, self.kernel.name)
    tile = self.params.tile[self.kernel.grid.index(axis)]
    for start in range(0, extents[axis], step):
      size = min(step, extents[axis] - start)
      yield start, {**extents, axis: size, own: -(-size // tile)}

  def _whole(self, values: Mapping[str, NamedArray], extents: Mapping[str, int]) -> dict[str, NamedArray]:
    kernel = self.kernel
    loaded = dict.fromkeys(o.tensor for o in kernel.loads)
    saved = dict.fromkeys(s.tensor for s in kernel.saves)
    tensors = [replace(self.tensors[n], role="input") for n in loaded]
    tensors += [replace(self.tensors[n], role="output") for n in saved]
    graph = UGraph(tuple(tensors), (kernel,))
    given = {n: values[n] for n in loaded}
    found = interpret_ugraph(Rounded(1), graph, (self.params,), extents, given)
    return {n: found[n] for n in saved}

  def _elements(self, extents: Mapping[str, int]) -> int:
    """The elements of the largest value of one iteration, over all blocks."""
    kernel, params = self.kernel, self.params

    def size(axis: str, phase: Phase) -> int:
      walked = phase is Phase.LOOP and axis == kernel.loop and axis not in kernel.grid
      step = params.loop_tile * params.cluster
      return min(extents[axis], step) if walked else extents[axis]

    return max(prod(size(a, o.phase) for a in o.axes) for o in kernel.ops if o.op != "load")

  def _divisible(self) -> int | None:
    """A grid dimension whose blocks read nothing of the axis but their own tile."""
    for dim, axis in enumerate(self.kernel.grid):
      whole = any(axis in o.axes and o.imap[dim] != axis for o in self.kernel.loads)
      counted = any(o.op == "extent" and axis in o.reduced for o in self.kernel.ops)
      if not whole and not counted:
        return dim
    return None


def _cut(x: NamedArray, axis: str, start: int, size: int) -> NamedArray:
  if axis not in x.axes:
    return x
  at = 1 + x.axes.index(axis)
  return NamedArray(x.data[(slice(None),) * at + (slice(start, start + size),)], x.axes)


def _join(parts: list[NamedArray], names: set[str]) -> NamedArray:
  """Pieces along the one of these axes that they have; without any they are all the same."""
  axes = parts[0].axes
  at = next((1 + i for i, a in enumerate(axes) if a in names), None)
  return parts[0] if at is None else NamedArray(np.concatenate([p.data for p in parts], at), axes)
