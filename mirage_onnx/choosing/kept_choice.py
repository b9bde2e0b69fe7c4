"""Choices that an earlier run has proven the best: the same question is not answered twice.

The question is everything that ``choose`` is given, by content; the code that answers it is part of the
folder's setting (``tune/realise.py``). What a file says is checked again as far as it could make a model
wrong: candidates that are there, no tensor yielded twice, none that needs what needs it. That it is the
cheapest is not.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mirage_onnx.choosing.disappearing import Place
from mirage_onnx.ir.program import Program


def question(
  program: Program,
  candidates: Sequence[Place],
  times_us: Sequence[float],
  node_us: Mapping[str, float],
  alone: Mapping[str, tuple[str, float]],
) -> str:
  """The hash of a question; numbers are written so that different ones differ."""
  known = {n.name for n in program.nodes}
  asked = (
    [(n.name, n.inputs, n.outputs) for n in program.nodes],
    program.outputs,
    [
      (sorted(c.nodes), sorted(c.outputs), list(c.reads), float(us))
      for c, us in zip(candidates, times_us, strict=True)
    ],
    sorted((n, float(us)) for n, us in node_us.items() if n in known),
    sorted((n, p, float(us)) for n, (p, us) in alone.items()),
  )
  return hashlib.sha256(json.dumps(asked).encode()).hexdigest()


def answered(
  said: Mapping[str, Any] | None,
  candidates: Sequence[Place],
  is_possible: Callable[[Sequence[int]], bool],
) -> tuple[int, ...] | None:
  """The choice as ``said``, or None where nobody can have made it: a file can be edited."""
  chosen = said.get("chosen") if said else None
  if not isinstance(chosen, list) or not all(type(i) is int and 0 <= i < len(candidates) for i in chosen):
    return None
  outputs = [o for i in chosen for o in candidates[i].outputs]
  if chosen != sorted(set(chosen)) or len(outputs) != len(set(outputs)) or not is_possible(chosen):
    return None
  return tuple(chosen)


def solution(
  said: Mapping[str, Any] | None, matrix: Any, limits: np.ndarray, fixed: int
) -> frozenset[int] | None:
  """The variables that are 1 as ``said``, or None where that is no solution: a file can be edited."""
  ones = said.get("ones") if said else None
  size = matrix.shape[1]
  if not isinstance(ones, list) or not all(type(i) is int and 0 <= i < size for i in ones):
    return None
  x = np.zeros(size)
  x[ones] = 1.0
  return frozenset(ones) if x[:fixed].all() and (matrix @ x <= limits + 1e-6).all() else None
