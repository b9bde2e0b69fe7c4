"""Concrete values of the block values of a µGraph, to hold against what is claimed of them."""

import re
from dataclasses import replace

import numpy as np

from mirage_onnx.ir.functions import ELEMENTWISE
from mirage_onnx.ir.interval import symmetric
from mirage_onnx.ir.text import parse_ugraph, print_ugraph
from mirage_onnx.verify.domain import Float64
from mirage_onnx.verify.named import NamedArray
from mirage_onnx.verify.program_lines import block_name
from mirage_onnx.verify.term_bounds import Fact, measured

#: Inputs of ``hard_inputs`` stay within this.
LIMIT = 8.0
CASES = 6


class Recorder(Float64):
  def __init__(self, runs):
    super().__init__(runs)
    self.seen = {}

  def elementwise(self, op, *args):
    name, _, site = op.partition("@")
    result = super().elementwise(name, *args)
    finite = result[np.isfinite(result)]
    if site and finite.size:
      low, high = self.seen.get(site, (np.inf, -np.inf))
      self.seen[site] = (min(low, float(finite.min())), max(high, float(finite.max())))
    return result


def widened(graph):
  """The graph without 16-bit values: ``Recorder`` does not round, so they are none there."""
  return parse_ugraph(re.sub(r"\b(f16|bf16)\[", "f32[", print_ugraph(graph)))


def labelled(graph):
  """The graph with every elementwise operation named after its place, for ``Recorder``."""
  kernels = tuple(
    replace(
      k,
      ops=tuple(
        replace(o, op=f"{o.op}@{block_name(n, k.name)}") if o.op in ELEMENTWISE else o
        for n, o in enumerate(k.ops)
      ),
    )
    for k in graph.kernels
  )
  return replace(graph, kernels=kernels)


def hard_inputs(region, extents, rng, limit=LIMIT):
  """Values in +-``limit`` that go to the ends, and what is known of them."""
  inputs, facts = {}, {}
  for i in region.inputs:
    shape = tuple(extents[a] for a in i.axes)
    cases = [
      rng.standard_normal(shape) / 3,
      rng.uniform(-1, 1, shape),
      np.where(rng.random(shape) < 0.5, 1.0, -1.0),
      np.ones(shape),
      np.abs(rng.standard_normal(shape)) * 1e-4,
      rng.standard_normal(shape) * 1e-4 + 0.6,
    ]
    data = np.clip(np.stack(cases), -1, 1) * limit
    if i.is_weight:
      data = np.broadcast_to(data[:1], data.shape).copy()
    inputs[i.name] = NamedArray(data, i.axes)
    known = measured(data[0], i.axes)
    facts[i.name] = known if i.is_weight else Fact(symmetric(limit))
  return inputs, facts
