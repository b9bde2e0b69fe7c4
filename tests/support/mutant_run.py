"""Runs mutants of kernels in the emulator and says which of them were noticed."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
from text_mutants import mutants

from mirage_onnx.codegen.source import KernelSource
from mirage_onnx.emulator import EmulationError, compile_kernels

#: Mutants of one translation unit: compiling many together costs little more than one.
UNIT = 24
ORDERS = ("ascending", "descending")


@dataclass(frozen=True)
class Subject:
  """Correct kernels that run in a row, what they read, and what they must write.

  ``expected``: output -> its values and the largest error, relative to the largest value (0:
  bit for bit). ``uninitialised``: tensors that no kernel may read before it is written.
  """

  name: str
  kernels: tuple[KernelSource, ...]
  tensors: Mapping[str, np.ndarray]
  expected: Mapping[str, tuple[np.ndarray, float]]
  uninitialised: Collection[str] = ()
  #: Of mistakes; all, if none are named.
  kinds: Collection[str] = ()

  def mutants(self):
    every = [(i, m) for i, kernel in enumerate(self.kernels) for m in mutants(kernel)]
    return [(i, m) for i, m in every if not self.kinds or m.kind in self.kinds]

  def wrong(self, got):
    for name, (want, tolerance) in self.expected.items():
      if tolerance == 0:
        if got[name].tobytes() != want.tobytes():
          return f"output {name}"
        continue
      scale = float(np.abs(want).max(initial=0.0)) or 1.0
      if not (np.abs(got[name].astype(np.float64) - want) <= tolerance * scale).all():
        return f"output {name}"
    return ""

  def noticed(self, found):
    """Mutants that compile, with the kind of error or the wrong output; "" for a survivor."""
    results = []
    for start in range(0, len(found), UNIT):
      results += self._unit(found[start : start + UNIT])
    return results

  def run(self, module, indices, timeout_s=2):
    """What is noticed when these kernels of ``module`` run, in both orders of threads."""
    for order in ORDERS:
      tensors = {name: array.copy() for name, array in self.tensors.items()}
      try:
        module.run(
          tensors, indices, order=order, timeout_s=timeout_s,
          uninitialised=self.uninitialised,
        )  # fmt: skip
      except EmulationError as error:
        return error.kind
      if wrong := self.wrong(tensors):
        return wrong
    return ""

  def _unit(self, found):
    rest = list(self.kernels)
    try:
      module = compile_kernels([*rest, *(m.source for _, m in found)])
    except EmulationError:  # a mistake that g++ finds is none of ours
      if len(found) == 1:
        return []
      half = len(found) // 2
      return self._unit(found[:half]) + self._unit(found[half:])
    results = []
    for position, (index, mutant) in enumerate(found):
      sequence = list(range(len(rest)))
      sequence[index] = len(rest) + position
      results.append((mutant, self.run(module, sequence)))
    return results
