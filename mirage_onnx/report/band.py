"""How far the predicted speedup of a whole model may be off, by those that were measured.

A whole model's predicted gain is its speedup less 1. ``REALISED`` is the least and the most of it that models
of real size had when they were timed on an H200 (bench/results/h200/whole.jsonl, predicted by the tables of
2026-11-26). It is a range of so many models, not an interval of confidence; for another GPU nothing better is
known.
"""

#: Shares of the predicted gain, and how many models they are of.
REALISED, MODELS = (0.47, 0.97), 12


def speedup_band(before_us: float, after_us: float) -> tuple[float, float] | None:
  """(low, high) of a predicted speedup; None where nothing is gained."""
  if not before_us > after_us > 0:
    return None
  gain = before_us / after_us - 1
  low, high = REALISED
  return round(1 + low * gain, 3), round(1 + high * gain, 3)
