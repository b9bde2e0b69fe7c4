"""The steps of a comparison, any of which may kill the process, and what is left out of one."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class SessionStep(StrEnum):
  """What is about to be done. What follows in a step's name is a kind of input, or a node."""

  OPEN = "opening"
  RUN = "both models on input"
  BODIES = "the function bodies on input"
  EDGES = "the search for the largest inputs"
  VALUES = "the original with what its regions read"
  NODES = "all custom nodes by themselves"
  NODE = "custom node"
  LAUNCH = "a kernel was emulated"


#: What is opened after the original.
OPTIMIZED = "the optimized model"

#: Told before each step, with the name of what it is about; after each launch of an emulated kernel.
Tell = Callable[[SessionStep, str], None]


def tell_nobody(_step: SessionStep, _name: str) -> None:
  """Of a comparison that runs in its caller's process."""


@dataclass(frozen=True, slots=True)
class LeftOut:
  """``kinds`` of inputs and ``nodes`` that are not checked; ``apart``: nodes one after the other.

  ``bodies``: those are not run. ``optimizations``: both models run with onnxruntime's basic ones only.
  """

  kinds: frozenset[str] = frozenset()
  nodes: frozenset[str] = frozenset()
  edges: bool = False
  bodies: bool = False
  regions: bool = False
  apart: bool = False
  optimizations: bool = False


#: Nothing is left out.
EVERYTHING = LeftOut()
