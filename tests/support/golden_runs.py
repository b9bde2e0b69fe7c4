"""The golden µGraphs at small sizes with random numbers: their texts for a GPU, run in the emulator."""

import random

import numpy as np
from golden_graphs import golden_graph
from random_kernel_run import boxed

from mirage_onnx.codegen import emit_kernel
from mirage_onnx.cost.counts import counts_of
from mirage_onnx.emulator import compile_kernels
from mirage_onnx.errors import RejectionError
from mirage_onnx.ir import KernelParams, round_to, ugraph_extents
from mirage_onnx.lower.choice import lowered
from mirage_onnx.verify.domain import Rounded
from mirage_onnx.verify.interpret_ugraph import interpret_ugraph
from mirage_onnx.verify.named import NamedArray

#: Of the largest element: the last bit of a 16-bit result.
TOLERANCE = 2e-3
#: Elements that a thread holds at once, and lane operations of its own, for which ptxas has registers enough.
MOST_HELD, MOST_LANES = 160, 1000
EXTENTS = (1, 2, 3, 5, 8, 16, 17, 24, 33)


def numbers(rng, kernel, *, clusters=True):
  return KernelParams(
    tuple(rng.choice([1, 2, 4, 8, 16, 20, 32]) for _ in kernel.grid),
    cluster=rng.choice([1, 2, 4]) if kernel.cluster and clusters else 1,
    loop_tile=rng.choice([8, 16, 24, 32]) if kernel.loop else 0,
    warps=rng.choice([1, 2, 4]),
    stages=rng.choice([1, 2, 3]),
  )


def has_registers(graph, kernel, params, extents, target):
  """Whether it is compiled without spills, and soon: random tiles may unroll into 200 KB of code."""
  counts = counts_of(lowered(graph, kernel, params, extents, target))
  return counts.held <= MOST_HELD and counts.lanes <= MOST_LANES * 32 * counts.warps


def drawn(name, graph, target, accepts=lambda *kernel: True):
  """Extents, numbers and sources: the first that can be emitted, with numbers that ``accepts`` takes."""
  axes = sorted({a.partition("/")[0] for t in graph.tensors for a in t.axes})
  for seed in range(40):
    rng = random.Random(f"{name}{seed}")
    extents = {a: rng.choice(EXTENTS) for a in axes}
    params = tuple(numbers(rng, k, clusters=target.has_clusters) for k in graph.kernels)
    every = ugraph_extents(graph, params, extents)
    try:
      kernels = tuple(zip(graph.kernels, params, strict=True))
      sources = [emit_kernel(graph, k, p, every, target) for k, p in kernels]
      if not all(accepts(graph, k, p, every, target) for k, p in kernels):
        continue
    except RejectionError as refused:
      # Random tiles are not the solver's: some are too large for registers.
      assert refused.rejection.code in ("LAYOUT", "SMEM"), refused
      continue
    return every, params, sources
  raise AssertionError("no numbers are accepted")


def complaint(name, target):
  """What is wrong with a golden program in the emulator, all checks on, as its text is for ``target``."""
  return complaint_of(name, golden_graph(name), target)


def complaint_of(name, graph, target):
  """The same of any program; ``name``: the seed of its sizes."""
  extents, params, sources = drawn(name, graph, target)
  rng = np.random.default_rng(0)
  tensors, inputs = {}, {}
  fulls = [w for t in graph.tensors for w in t.windows]
  rows = {
    t.name: rng.integers(0, min(w.full for w in fulls if w.picks == t.name), t.elements(extents))
    for t in graph.tensors
    if t.role == "rows"
  }
  for t in graph.tensors:
    if t.role == "rows":
      tensors[t.name] = rows[t.name].astype(t.dtype.numpy)
      continue
    empty = np.nan if t.dtype.is_float else 0
    tensors[t.name] = np.full(t.elements(extents), empty).astype(t.dtype.numpy)
    if t.role in ("input", "weight"):
      # Positive: among the inputs are variances.
      shape = tuple(extents[a] for a in t.axes)
      boxed(t, tensors[t.name], extents, rows, round_to(rng.uniform(0.1, 1.5, shape), t.dtype))
      # What is in memory now: rows that are picked twice are one.
      values = boxed(t, tensors[t.name], extents, rows).astype(np.float64).reshape(shape)
      inputs[t.name] = NamedArray(values[None], t.axes)
  want = interpret_ugraph(Rounded(), graph, params, extents, inputs)
  # Whoever wrote the inputs may still run when the first kernel starts.
  given = [t.name for t in graph.tensors if t.role in ("input", "rows")]
  compile_kernels(sources).run(tensors, written_before=given)
  for t in graph.tensors:
    if t.role == "output":
      exact = want[t.name].aligned(t.axes)[0].astype(np.float64)
      got = boxed(t, tensors[t.name], extents, rows).astype(np.float64).reshape(exact.shape)
      off = np.abs(got - exact).max()
      if not off <= TOLERANCE * max(np.abs(exact).max(), 1e-6):
        return f"{t.name} is off by {off} at {extents} with {params}"
  return ""
