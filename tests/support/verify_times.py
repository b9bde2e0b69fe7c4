"""How long ``verify`` takes for one candidate."""

import time

import numpy as np

from mirage_onnx.verify.equivalence import Proof, verify

#: Issue 4, point 3, for a candidate at the reduced instantiation on one core.
LIMIT_MS = {"median": 20.0, "p95": 100.0}


def times_ms(golden, repeats):
  """CPU time of each of ``repeats`` calls, with other seeds: what else runs does not count."""
  verify(golden.region, golden.ugraph)
  times = []
  for seed in range(repeats):
    start = time.process_time()
    proof = verify(golden.region, golden.ugraph, seed=seed)
    times.append(1e3 * (time.process_time() - start))
    assert isinstance(proof, Proof), (golden.name, seed, proof)
  return np.array(times)
