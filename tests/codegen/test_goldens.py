"""The golden µGraphs of the generator: right in the emulator, compiled for all architectures."""

import random
from dataclasses import replace

import numpy as np
import pytest
from golden_graphs import NAMES, golden_graph

from mirage_onnx.codegen import compile_cubin, emit_kernel
from mirage_onnx.emulator import compile_kernels
from mirage_onnx.errors import RejectionError
from mirage_onnx.ir import KernelParams, round_to, ugraph_extents
from mirage_onnx.target import H200
from mirage_onnx.verify.domain import Rounded
from mirage_onnx.verify.interpret_ugraph import interpret_ugraph
from mirage_onnx.verify.named import Named

#: Of the largest element: the last bit of a 16-bit result.
TOLERANCE = 2e-3
EXTENTS = (1, 2, 3, 5, 8, 16, 17, 24, 33)
ARCHITECTURES = {"sm_80": False, "sm_89": False, "sm_90a": True, "sm_100a": True, "sm_120a": True}


def numbers(rng, kernel, *, clusters=True):
  return KernelParams(
    tuple(rng.choice([1, 2, 4, 8, 16, 20, 32]) for _ in kernel.grid),
    cluster=rng.choice([1, 2, 4]) if kernel.cluster and clusters else 1,
    loop_tile=rng.choice([8, 16, 24, 32]) if kernel.loop else 0,
    warps=rng.choice([1, 2, 4]),
    stages=rng.choice([1, 2, 3]),
  )


def drawn(name, graph, target):
  axes = sorted({a.partition("/")[0] for t in graph.tensors for a in t.axes})
  for seed in range(40):
    rng = random.Random(f"{name}{seed}")
    extents = {a: rng.choice(EXTENTS) for a in axes}
    params = tuple(numbers(rng, k, clusters=target.has_clusters) for k in graph.kernels)
    every = ugraph_extents(graph, params, extents)
    try:
      sources = [emit_kernel(graph, k, p, every, target) for k, p in zip(graph.kernels, params, strict=True)]
    except RejectionError as refused:
      # Random tiles are not the solver's: some are too large for registers.
      assert refused.rejection.code in ("LAYOUT", "SMEM"), refused
      continue
    return every, params, sources
  raise AssertionError("no numbers are accepted")


@pytest.mark.parametrize(
  "name",
  [pytest.param(n, marks=[pytest.mark.slow] if i % 4 else []) for i, n in enumerate(NAMES)],
)
def test_right_in_the_emulator(name):
  graph = golden_graph(name)
  extents, params, sources = drawn(name, graph, H200)
  rng = np.random.default_rng(0)
  tensors = {}
  inputs = {}
  for t in graph.tensors:
    shape = tuple(extents[a] for a in t.axes)
    values = np.full(shape, np.nan)
    if t.role in ("input", "weight"):
      # Positive: among the inputs are variances.
      values = round_to(rng.uniform(0.1, 1.5, shape), t.dtype)
      inputs[t.name] = Named(values[None], t.axes)
    tensors[t.name] = values.astype(t.dtype.numpy)
  want = interpret_ugraph(Rounded(), graph, params, extents, inputs)
  # Whoever wrote the inputs may still run when the first kernel starts.
  compile_kernels(sources).run(tensors, written_before=[t.name for t in graph.tensors if t.role == "input"])
  for t in graph.tensors:
    if t.role == "output":
      exact = want[t.name].aligned(t.axes)[0].astype(np.float64)
      got = tensors[t.name].astype(np.float64)
      largest = max(np.abs(exact).max(), 1e-6)
      assert np.abs(got - exact).max() <= TOLERANCE * largest, (t.name, extents, params)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_compiles_for_every_architecture(arch):
  clusters = ARCHITECTURES[arch]
  target = replace(
    H200, arch=arch, capability=divmod(int(arch.strip("sm_a")), 10), has_clusters=clusters,
    max_cluster=8 if clusters else 1, has_pdl=not arch.startswith("sm_8"),
  )  # fmt: skip
  spilled = []
  for name in NAMES:
    for source in drawn(name, golden_graph(name), target)[2]:
      try:
        compile_cubin(source.text, target, name=source.name)
      except RejectionError as refused:
        assert refused.rejection.code == "SPILLS", (name, refused)
        spilled.append(name)
  # Random numbers are not the solver's either.
  assert len(spilled) <= len(NAMES) // 10, spilled
