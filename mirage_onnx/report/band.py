"""How far the predicted speedup of a whole model may be off, by those that were measured.

``MEASURED`` is the least and the most of its predicted speedup that a model of real size had when it was
timed on an H100 or an H200 (bench/results/predictions.json). It is a range of so many models, not an interval
of confidence; for another GPU nothing better is known.
"""

#: Measured over predicted speedups, and how many models they are of.
MEASURED, MODELS = (0.92, 1.41), 27


def speedup_band(before_us: float, after_us: float) -> tuple[float, float] | None:
  """(low, high) of a predicted speedup; None where nothing is gained."""
  if not before_us > after_us > 0:
    return None
  low, high = (part * before_us / after_us for part in MEASURED)
  return round(low, 3), round(high, 3)
