"""Random programs whose inputs and outputs are boxes of memory that is NaN elsewhere.

They begin, and are wide, by chance or by multiples of 8, and may be one of many elements.
"""

import random
from dataclasses import replace
from math import prod

import numpy as np

from mirage_onnx.ir import DType, KTensor
from mirage_onnx.ir.view import Window


def windows(axes, extents, rng):
  """The dimensions of memory that a tensor over these axes may be a box of."""
  step = rng.choice((1, 2, 8))
  found = []
  rest = list(axes)
  while rest:
    own = tuple(rest.pop(0) for _ in range(rng.choice((1, 1, 2))) if rest)
    n = prod(extents[a] for a in own)
    start, room = step * rng.randrange(4), step * rng.randrange(4)
    full = -(-(start + n + room) // step) * step
    found.append(Window(own) if rng.random() < 0.3 else Window(own, start, full))
  if rng.random() < 0.2:
    found.insert(rng.randrange(len(found) + 1), Window((), rng.randrange(3), 3))
  return tuple(found) if any(w.full for w in found) else ()


def windowed(case):
  rng = random.Random(case.seed)
  placed = tuple(
    t if t.role == "temp" else replace(t, windows=windows(t.axes, case.extents, rng))
    for t in case.graph.tensors
  )
  return replace(case, graph=replace(case.graph, tensors=placed))


def picked(case):
  """Programs whose inputs are rows of tables, in an order that another tensor says, and boxes otherwise."""
  rng = random.Random(case.seed)
  placed, rows, inputs = [], [], dict(case.oracle.inputs)
  for t in case.graph.tensors:
    if t.role != "input" or not t.axes or rng.random() < 0.3:
      placed.append(t)
      continue
    axis, name = t.axes[0], f"r{len(rows)}"
    count, more = case.extents[axis], rng.randrange(5)
    rest = (Window(t.axes[1:]),) if t.axes[1:] else ()
    inside = windows(t.axes[1:], case.extents, rng) or rest
    placed.append(replace(t, windows=(Window((axis,), 0, count + more, name), *inside)))
    rows.append(KTensor(name, DType.I64, (axis,), "rows"))
    inputs[name] = np.array(rng.sample(range(-more, count), count), np.int64)
  graph = replace(case.graph, tensors=(*placed, *rows))
  return replace(case, graph=graph, oracle=replace(case.oracle, inputs=inputs))
