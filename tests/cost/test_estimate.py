"""Numbers of streaming kernels, all points at once, against one point after the other."""

from collections import Counter
from dataclasses import replace
from itertools import product
from math import ceil

import numpy as np
import pytest
from goldens import GOLDENS

from mirage_onnx.cost.model import ROUNDING, estimate, features, kernel_cost
from mirage_onnx.errors import RejectionError
from mirage_onnx.ir.ugraph import KernelParams, is_part_axis
from mirage_onnx.lower.layouts import lay_out
from mirage_onnx.superopt.numbers import MAX_REGISTERS, solve, tile_choices
from mirage_onnx.target import H200

SMALL_SMEM = replace(H200, smem_bytes=3000, has_clusters=False)


def points(kernel, extents, target):
  choices, clusters = tile_choices(kernel, extents, target)
  depth = extents[kernel.loop]
  for tile in product(*choices):
    for cluster, warps, stages in product(clusters, (2, 4, 8), (1, 2, 4, 8)):
      steps = ceil(depth / (32 * cluster))
      if warps <= max(2, steps) and stages <= max(1, ceil(steps / warps)):
        yield KernelParams(tile, cluster, 32 * warps, warps, stages)


def one_by_one(kernel, tensors, extents, target, keep, dropped):
  read = features(kernel, tensors, extents)
  found = []
  for params in points(kernel, extents, target):
    cost = kernel_cost(read, params, target)
    if cost.registers > MAX_REGISTERS:
      dropped["registers"] += 1
    elif cost.smem_bytes > target.smem_bytes:
      dropped["shared memory"] += 1
    else:
      found.append((cost.time_us, params.to_text(), cost, params))
  found.sort(key=lambda f: f[:2])
  return tuple((cost, params) for _, _, cost, params in found[:keep])


def streaming():
  for g in GOLDENS:
    tensors = {t.name: t for t in g.ugraph.tensors}
    for k in g.ugraph.kernels:
      ops = tuple(replace(op, axes=tensors[op.tensor].axes) if op.op == "load" else op for op in k.ops)
      try:
        ops = lay_out(replace(k, ops=ops), tensors, general=False).ops
      except RejectionError:
        continue
      touched = [op.tensor for op in k.loads] + [save.tensor for save in k.saves]
      whole = not any(is_part_axis(a) for t in touched for a in tensors[t].axes)
      if k.loop is not None and whole:
        yield f"{g.name}-{k.name}", replace(k, ops=ops), tensors, g.region.extents


KERNELS = [pytest.param(*rest, id=name) for name, *rest in streaming()]
SWEEP = [(1, 1), (8, 1), (16, 4), (11, 3), (64, 16), (1000, 1), (4096, 8)]


def test_there_are_kernels_to_compare():
  assert len(KERNELS) >= 6


@pytest.mark.parametrize(("kernel", "tensors", "extents"), KERNELS)
@pytest.mark.parametrize("target", [H200, SMALL_SMEM], ids=["h200", "less"])
def test_the_same_numbers(kernel, tensors, extents, target):
  for rows, scale in SWEEP:
    sizes = {a: n * scale for a, n in extents.items()}
    sizes[kernel.grid[-1]] = rows
    for keep in (1, 8, 1000):
      one, all_at_once = Counter[str](), Counter[str]()
      expected = one_by_one(kernel, tensors, sizes, target, keep, one)
      assert solve(kernel, tensors, sizes, target, keep=keep, pruned=all_at_once) == expected
      assert all_at_once == one
      allowed = solve(kernel, tensors, sizes, target, keep=keep, allow=even)
      everything = one_by_one(kernel, tensors, sizes, target, 1000, one)
      assert allowed == tuple(f for f in everything if even(f[1]))[:keep]


def even(params):
  return params.stages * params.warps == 8


@pytest.mark.parametrize(("kernel", "tensors", "extents"), KERNELS)
def test_times_are_those_of_the_model(kernel, tensors, extents):
  """Far closer than ``ROUNDING``, so that no point which belongs to the best is missed."""
  read = features(kernel, tensors, extents)
  every = list(points(kernel, extents, H200))
  tile = tuple(np.array(t) for t in zip(*(p.tile for p in every), strict=True))
  numbers = (np.array([getattr(p, n) for p in every]) for n in ("cluster", "warps", "stages"))
  found = estimate(read, tile, *numbers, H200)
  costs = [kernel_cost(read, p, H200) for p in every]
  assert found.time_us == pytest.approx([c.time_us for c in costs], rel=ROUNDING / 1000)
  assert found.registers.tolist() == [c.registers for c in costs]
  assert found.smem_bytes.tolist() == [c.smem_bytes for c in costs]
