"""The numbers of a kernel, whatever its family, and those of all kernels of a program together."""

from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence

from mirage_onnx.cost.model import Cost, features, kernel_cost
from mirage_onnx.cost.tiled_work import TiledWork
from mirage_onnx.instructions import MMA
from mirage_onnx.ir.ugraph import Candidate, Kernel, KernelParams, KTensor, ugraph_extents
from mirage_onnx.lower.layouts import Family, lay_out
from mirage_onnx.lower.unseen import early_end
from mirage_onnx.superopt.numbers import solve
from mirage_onnx.superopt.tiled_numbers import solve_tiled
from mirage_onnx.target import Target

#: The cost of the best numbers of a kernel in microseconds, and its numbers, best first.
Solved = tuple[float, tuple[KernelParams, ...]]
#: What a tiled kernel takes whose sizes only a run knows, where one made for the size takes 1: geometric mean
#: of 270 numbers and sizes of products of activations (an H100, bench/results/h100/runtime_sizes.json).
AT_RUN_TIME = 1.12

#: Of a cache of which a run says how far it is full, a loop takes so much less than all: it is half full, as
#: where onnxruntime's operator and our kernels are timed (``tune/node_models.py``, ``tune/hard_inputs.py``).
HALF = 2


def solver(family: Family) -> Callable[..., tuple[tuple[Cost, KernelParams], ...]]:
  """What finds the cheapest points of kernels of a family."""
  return solve_tiled if family is Family.TILED else solve


def kernel_times(
  candidate: Candidate,
  extents: Mapping[str, int],
  target: Target,
  tiled_us: Callable[..., float | None],
  runtime: Container[str] = (),
  half: int = HALF,
) -> tuple[tuple[Family, float | None], ...]:
  """The kernels' families and microseconds at ``extents``.

  Of a tiled one, and of one whose numbers have an instruction that the special kinds have not, ``tiled_us``
  says it, by graph, kernel, extents, numbers and target; of others the model of ``cost/model.py``, which is
  fitted to measurements. Of a ``runtime`` axis a block computes whole tiles, however few elements there are.
  Caches are full to one part of ``half``.
  """
  graph, found = candidate.ugraph, list[tuple[Family, float | None]]()
  tensors = {t.name: t for t in graph.tensors}
  every = ugraph_extents(graph, candidate.params, extents)
  for kernel, params in zip(graph.kernels, candidate.params, strict=True):
    family = lay_out(kernel, tensors).family
    if family is Family.TILED or params.instruction != MMA.name:
      sizes = _in_tiles(kernel, every, params, runtime)
      if (loop := kernel.loop) and early_end(graph, kernel):
        sizes = {**sizes, loop: max(1, sizes[loop] // half)}
      time_us = tiled_us(graph, kernel, sizes, params, target)
      counted = any(a in runtime for name in kernel.touched for a in tensors[name].axes)
      if time_us is not None and counted:
        time_us *= AT_RUN_TIME
    else:
      cost = kernel_cost(features(kernel, tensors, every), params, target, runtime)
      time_us = cost.time_us
    found.append((family, time_us))
  return tuple(found)


def _in_tiles(
  kernel: Kernel, extents: Mapping[str, int], params: KernelParams, runtime: Container[str]
) -> Mapping[str, int]:
  """The extents, those that only a run knows rounded up to tiles of the grid or the loop."""
  tiles = dict(zip(kernel.grid, params.tile, strict=True))
  if kernel.loop is not None:
    tiles.setdefault(kernel.loop, params.loop_tile)
  return {a: -(-n // tiles[a]) * tiles[a] if a in runtime and a in tiles else n for a, n in extents.items()}


def solved(
  family: Family,
  kernel: Kernel,
  tensors: Mapping[str, KTensor],
  extents: Mapping[str, int],
  target: Target,
  *,
  keep: int,
  pruned: Counter[str] | None = None,
  allow: Callable[[KernelParams], bool] | None = None,
  work: TiledWork | None = None,
) -> Solved | None:
  """The ``keep`` cheapest points of a kernel by the cost model of its family; None if none fits.

  ``pruned`` counts what does not fit, by reason; points that ``allow`` refuses are passed over.
  ``work``: of a tiled kernel, if it is known.
  """
  more = {"work": work} if work else {}
  points = solver(family)(kernel, tensors, extents, target, keep=keep, pruned=pruned, allow=allow, **more)
  return (points[0][0].time_us, tuple(p for _, p in points)) if points else None


def together(kernels: Sequence[Solved]) -> Iterator[tuple[float, tuple[KernelParams, ...]]]:
  """The numbers of all kernels, in launch order: the best of each, then the second best, ...

  Each with a cost in microseconds: that of the best, and a little more for each that follows.
  """
  # Added up from the last kernel on, as plans are, so that equal times stay equal.
  cost_us = sum(cost for cost, _ in reversed(kernels))
  for i in range(max(len(params) for _, params in kernels)):
    yield cost_us + 0.01 * i, tuple(params[min(i, len(params) - 1)] for _, params in kernels)
