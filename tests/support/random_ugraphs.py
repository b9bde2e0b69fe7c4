"""Random well-formed µGraphs with any numbers at small extents: every operation, cut and save.

What ``random_kernels`` draws, in fp32 throughout and before anything is asked of it as code.
"""

from dataclasses import dataclass

from random_kernel_block import Block
from random_kernel_forms import FORMS, free, merge
from random_kernel_steps import pick
from random_kernels import Again, finished

from mirage_onnx.ir import DType, KernelParams, UGraph, ugraph_extents
from mirage_onnx.ir.spec import check_ugraph

EXTENTS = (1, 2, 3, 4, 5, 7)
#: Mostly loads that are cut in any way; and how often a program without a cluster counts.
KINDS, ALONE = FORMS | {free: 1.5}, 0.3
#: Elements of the axes of a program together.
MOST_ELEMENTS = 2000


@dataclass(frozen=True)
class RandomProgram:
  graph: UGraph
  params: tuple[KernelParams, ...]
  extents: dict[str, int]


def _numbers(rng, kernel, extents):
  def size(axis):
    return rng.randint(1, extents[axis] + 1) if axis else 0

  ranks = rng.randint(1, 4) if kernel.cluster else 1
  return KernelParams(tuple(map(size, kernel.grid)), ranks, size(kernel.loop))


def _drawn(rng):
  tensors, kinds = [], {}
  block = Block(rng, "k0", {}, DType.F32, tensors, kinds)
  pick(rng, KINDS)(block)
  if block.cluster is None and rng.random() > ALONE:
    raise Again
  kernels, extents, left = [finished(block)], {}, MOST_ELEMENTS
  for a in block.extents:
    extents[a] = rng.choice([n for n in EXTENTS if n <= left])
    left //= extents[a]
  params = [_numbers(rng, kernels[0], extents)]
  if any(t.role == "temp" for t in tensors):
    every = ugraph_extents(UGraph(tuple(tensors), tuple(kernels)), params, extents)
    block = Block(rng, "k1", every, DType.F32, tensors, kinds)
    merge(block)
    kernels.append(finished(block))
    extents |= {a: n for a, n in block.extents.items() if a not in every}
    params.append(_numbers(rng, kernels[1], {**every, **extents}))
  used = {o.tensor for k in kernels for o in k.loads} | {s.tensor for k in kernels for s in k.saves}
  graph = UGraph(tuple(t for t in tensors if t.name in used), tuple(kernels))
  if check_ugraph(graph) is not None:
    raise Again
  return RandomProgram(graph, tuple(params), extents)


def random_program(rng):
  """One kernel, or two of which the second reads what the first saves."""
  while True:
    try:
      return _drawn(rng)
    except Again:
      continue
