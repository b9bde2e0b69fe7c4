"""What two searches must agree on, and polls that end one."""

import numpy as np

from mirage_onnx.ir.text import print_ugraph
from mirage_onnx.superopt.result import Stop


def summary(result):
  """All but the time it took: candidates, states, built, verified, stop, pruned, refused."""
  r = result.report
  found = [
    (
      print_ugraph(v.candidate.ugraph),
      [p.to_text() for p in v.candidate.params],
      np.float64(v.candidate.predicted_us).tobytes(),
      v.proof,
    )
    for v in result.candidates
  ]
  return (found, r.states, r.built, r.verified, r.stop, r.pruned, r.refused)


def after(polls):
  left = [polls]

  def stop():
    left[0] -= 1
    return Stop.INTERRUPTED if left[0] < 0 else None

  return stop
