"""What a whole model takes, predicted: before, and with the regions that were chosen.

Every node counts once, in the body of a Loop or a Scan as often as it is run where that is known; of an If
both branches count. Before: the nodes of known time. After: those that are left, and the chosen
kernels. A node without a time is in neither, so both are of the same nodes; how many there are is said.

What a kernel is predicted to take is what it takes alone; in a model it takes longer (``IN_MODEL_US``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mirage_onnx.choosing.disappearing import disappearing
from mirage_onnx.ir.program import Program
from mirage_onnx.match.candidates import RegionCandidate
from mirage_onnx.tune.outcome import Outcome

#: Microseconds that a kernel chosen by prediction takes longer in a model than is predicted of it alone:
#: 1.67 to 1.81 (BERT-base 1x128, MiniLM and Qwen3-0.6B on an H100 and an H200, 43 to 254 kernels each).
IN_MODEL_US = 1.7


@dataclass(frozen=True, slots=True)
class ModelTimes:
  """``nodes`` of the model, of which nobody needs ``gone`` any more; ``kernels``: custom nodes.

  ``unknown``: nodes without a time, ``unknown_gone`` of them replaced (their kernels' time is in
  ``after_us``). ``bounded``: nodes that count as what moving their bytes takes, at least, and
  ``bounds`` which these are. ``node_us``: what is known of nodes; ``left_us``: of those that are left.
  """

  nodes: int
  gone: int
  kernels: int
  unknown: int
  unknown_gone: int
  bounded: int
  before_us: float
  after_us: float
  node_us: Mapping[str, float] = field(default_factory=dict)
  left_us: Mapping[str, float] = field(default_factory=dict)
  bounds: frozenset[str] = frozenset()


def model_times(
  program: Program,
  chosen: Sequence[tuple[RegionCandidate, Outcome]],
  table_us: Mapping[str, float],
  node_us: Mapping[str, float],
  alone: Mapping[str, tuple[str, float]],
) -> ModelTimes:
  """``table_us``: nodes of measured time; ``node_us``: those, and bounds of others.

  ``alone``: as ``choose`` has it.
  """
  names = [n.name for n in program.nodes]
  gone = disappearing(program, [c for c, _ in chosen])
  unknown = [n for n in names if n not in node_us]
  times = program.repeats
  left_us = {n: us * times.get(n, 1) for n, us in node_us.items() if n not in gone}
  # Computed in the kernel of another node until only that one is gone.
  for n, (other, us) in alone.items():
    if other in gone and n not in gone:
      left_us[n] = left_us.get(n, 0.0) + us * times.get(n, 1)
  bounds = frozenset(n for n in node_us if n not in table_us)
  return ModelTimes(
    nodes=len(names),
    gone=len(gone),
    kernels=len(chosen),
    unknown=len(unknown),
    unknown_gone=sum(n in gone for n in unknown),
    bounded=len(bounds),
    before_us=sum(us * times.get(n, 1) for n, us in node_us.items()),
    after_us=float(
      sum(left_us.values()) + sum(place_us(o) * times.get(c.region.nodes[0], 1) for c, o in chosen)
    ),
    node_us=node_us,
    left_us=left_us,
    bounds=bounds,
  )


def place_us(o: Outcome) -> float:
  """What the kernels of a region take at one of its places: measured, or predicted in a model."""
  return o.price_us(0.0) + (IN_MODEL_US if o.measured is None else 0.0)
