"""One arm of a case, and the arms that the time of the case was enough for."""

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

#: How torch says that an implementation of its attention does not take these shapes.
NOT_THERE = ("No available kernel", "No viable backend")


@dataclass
class Arm:
  """Something to time. ``result``: the outputs of a call, in the model's order.

  ``kept``: what the call reads and does not hold itself (the inputs of a CUDA graph).
  """

  call: Callable[[], object]
  result: Callable[[], list[np.ndarray]] | None = None
  note: dict[str, Any] = field(default_factory=dict)
  kept: object = None


@dataclass
class Arms:
  """What could be made before the ``deadline`` (of time.monotonic), and what could not."""

  deadline: float
  made: dict[str, Arm] = field(default_factory=dict)
  failed: list[str] = field(default_factory=list)
  left_out: list[str] = field(default_factory=list)
  absent: list[str] = field(default_factory=list)

  @property
  def seconds_left(self):
    return self.deadline - time.monotonic()

  def add(self, name, make):
    def work():
      self.made[name] = make()

    self.run(name, work)

  def run(self, name, work):
    """Not after the deadline; an error of ``work`` is recorded and goes no further."""
    began = time.monotonic()
    try:
      if self.seconds_left <= 0:
        raise TimeoutError
      work()
    except (TimeoutError, subprocess.TimeoutExpired):
      self.left_out.append(name)
    except Exception as error:
      text = str(error).strip()
      if text.startswith(NOT_THERE):
        self.absent.append(name)
      else:
        self.failed.append(f"{name}: {type(error).__name__}: {text[:500]}")
        print("FAILED", self.failed[-1], file=sys.stderr, flush=True)
    print(f"  {name}: {time.monotonic() - began:.1f} s", flush=True)
