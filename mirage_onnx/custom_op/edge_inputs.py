"""Inputs at the edge of what a model takes: the largest at which its outputs are still finite.

A kernel that computes in another order may overflow where the original does not, and only there.
The scale is found by bisection, on the original alone; it is measured on what the model is by its
definition (``widen.rounded``), because onnxruntime's CPU provider keeps 16-bit floats in fp32.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import log2
from typing import Any

import ml_dtypes
import numpy as np

from mirage_onnx.custom_op.compare_inputs import combinations, draw_one, is_float
from mirage_onnx.custom_op.input_facts import InputFacts

#: All values are large; one channel is, as in models with massive activations.
EDGES = ("edge", "channel at the edge")
#: Steps of the bisection, in octaves; and how far below the edge is drawn, unless it is that of
#: the type: sums in another order differ by roundings.
STEP, BELOW = 0.25, 0.75

#: Inputs -> whether what the original makes of them is finite.
IsFinite = Callable[[Mapping[str, np.ndarray]], bool]


def edge_inputs(
  arguments: Sequence[Any],
  seed: int,
  dims: Mapping[str, int | Sequence[int]],
  int_limits: Mapping[str, int],
  facts: InputFacts,
  is_finite: IsFinite,
) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
  """``(kind, arrays by name)`` of each of ``EDGES``.

  None where no input is of floats, or the original is not finite on normal ones.
  """
  floats = [v.name for v in arguments if is_float(v)]
  if facts.masks.issuperset(floats):  # all of them are added to logits
    facts = replace(facts, masks=facts.masks.difference(floats))
  scaled = [name for name in floats if name not in facts.masks]
  if not scaled:
    return
  for index, kind in enumerate(EDGES):
    rng = np.random.default_rng([seed, 1 << 20, index])
    base = draw_one(arguments, rng, kind, combinations(dims)[0], int_limits, facts)
    if kind != EDGES[0]:
      base |= {name: _one_channel(rng, base[name]) for name in scaled}
    top = max(_largest(base[name]) for name in scaled)
    feeds = at_the_edge(base, dict.fromkeys(scaled, kind != EDGES[0]), top, is_finite)
    if feeds is not None:
      yield kind, feeds


def at_the_edge(
  base: Mapping[str, np.ndarray], scaled: Mapping[str, bool], top: float, is_finite: IsFinite
) -> dict[str, np.ndarray] | None:
  """``base`` with the tensors ``scaled`` (True: only what is infinite in them) as large as is finite."""

  def at(scale: float) -> dict[str, np.ndarray]:
    return {**base, **{name: _scaled(base[name], scale, channel) for name, channel in scaled.items()}}

  if is_finite(found := at(top)):
    return found
  low, high = 0.0, log2(top)
  if not is_finite(at(1.0)):
    return None
  while high - low > STEP:
    middle = (low + high) / 2
    low, high = (middle, high) if is_finite(at(2.0**middle)) else (low, middle)
  return at(max(1.0, BELOW * 2.0**low))


def _largest(x: np.ndarray) -> float:
  return float(ml_dtypes.finfo(x.dtype).max)


def _one_channel(rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
  """One channel is infinite: what is scaled."""
  found = x.copy()
  if x.size and x.ndim:
    found[..., rng.integers(x.shape[-1])] = np.inf
  return found


def _scaled(x: np.ndarray, scale: float, channel: bool) -> np.ndarray:
  most = _largest(x)
  wide = x.astype(np.float64)
  with np.errstate(over="ignore"):
    wide = np.where(np.isinf(wide), min(scale, most), wide) if channel else wide * scale
  return np.clip(wide, -most, most).astype(x.dtype)
