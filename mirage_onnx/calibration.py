"""``mirage-onnx calibrate``: the rates of the present GPU beside those of its profile.

Kernels are chosen by a profile's row, so that the same command gives the same model everywhere. What is
measured here says whether the present GPU is what its row says (or a part of one, at a lower clock, shared).
A GPU that has no measured row is chosen for by these rates (``tune/local.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from mirage_onnx.target import TARGETS, Rated, Target
from mirage_onnx.tune.device import PresentGpu, driver_api_version
from mirage_onnx.tune.local import rates_of, usable_gpu, usable_profile
from mirage_onnx.tune.machine import driver_version, machine_of
from mirage_onnx.tune.profile_file import profile_of
from mirage_onnx.tune.rates import Rates, kept_rates

#: A rate that is so much worse than the profile's is no accident of a measurement.
WORSE = 1.15
#: Rates: what is better, and the unit.
_COLUMNS = {
  "launch_us": (-1, "us"), "ramp_us": (-1, "us"), "stream_tbps": (1, "TB/s"), "mma_tflops": (1, "TFLOP/s"),
}  # fmt: skip
#: A difference below this many microseconds is within what one measurement differs from the next.
_NOISE_US = 0.3


@dataclass(frozen=True, slots=True)
class Calibration:
  """``profile``: of this GPU, None where it has none; ``kept``: measured before."""

  gpu: PresentGpu
  target: Target
  machine: dict[str, str]
  rates: Rates
  profile: Target | None
  kept: bool

  def to_dict(self) -> dict[str, Any]:
    """What ``--json`` prints."""
    own = {c: getattr(self.profile, c) for c in _COLUMNS} if self.profile else None
    return {
      "schema": 1, "gpu": str(self.gpu), "machine": self.machine, "rates": msgspec.to_builtins(self.rates),
      "profile": self.profile.name if self.profile else None, "profile_rates": own, "kept": self.kept,
      "worse": list(self.worse()),
    }  # fmt: skip

  def to_file(self) -> str:
    """What ``--profile`` writes (``tune/profile_file.py``)."""
    return profile_of(self.gpu, self.target, self.machine, self.rates).text()

  def worse(self) -> tuple[str, ...]:
    """The rates that are worse than the profile's."""
    return tuple(c for c in _COLUMNS if self.profile is not None and _is_worse(self, c))


def calibrated(*, again: bool = False) -> Calibration:
  """Of the present GPU: what is kept, or measured now.

  Raises:
      MirageError: NO_GPU, DRIVER_TOO_OLD, COMPILER_MISSING, SESSION_FAILED.
  """
  gpu, target = usable_gpu(), usable_profile()
  machine = machine_of(gpu, driver_version(driver_api_version())).text
  kept = not again and kept_rates(machine) is not None
  rates = rates_of(gpu, target, again=again)
  return Calibration(gpu, target, machine, rates, TARGETS.get(target.name), kept)


def to_lines(found: Calibration) -> str:
  """A table of four rates, what else was measured, and what follows from it."""
  name = found.profile.name if found.profile else ""
  lines = [f"{found.gpu}{' (measured before; --again measures it)' if found.kept else ''}"]
  for column, (_, unit) in _COLUMNS.items():
    own = f"  {name}: {getattr(found.profile, column):g}" if found.profile else ""
    mark = "  worse" if column in found.worse() else ""
    lines.append(f"  {column:12} {getattr(found.rates, column):9.4g} {unit:8}{own}{mark}")
  if (chip := found.rates.chip) is not None:
    tensor = ", ".join(f"{kind} {value:.4g}" for kind, value in chip.mma_tflops.items())
    lines.append(f"  L2 {chip.l2_tbps:.3g} TB/s; barrier {chip.barrier_us:.2g} us; mma {tensor} TFLOP/s")
  if (table := found.rates.table) is not None:
    missing = f", {len(table.failed)} could not be had ({table.failed[0]})" if table.failed else ""
    lines.append(f"  {table.points} times of operators of onnxruntime {table.ort}{missing}")
  if found.profile is None:
    lines.append("it has no row of its own: --target local uses these rates")
  elif found.profile.rated is Rated.DATASHEET:
    lines.append(f"the row of {name} is from its data sheet: --target local uses these rates")
  elif found.worse():
    lines.append(f"worse than {name}'s row: is it a part of a GPU, shared, or at lower clocks?")
  else:
    lines.append(f"as the row of {name} says: --target local can be used")
  return "\n".join(lines)


def _is_worse(found: Calibration, column: str) -> bool:
  better, unit = _COLUMNS[column]
  have, want = getattr(found.rates, column), getattr(found.profile, column)
  if better > 0:
    return bool(have * WORSE < want)
  return bool(have > want * WORSE + (_NOISE_US if unit == "us" else 0.0))
