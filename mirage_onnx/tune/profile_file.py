"""A profile in a file: the rates that ``calibrate`` measured on a GPU, for a run on it or far from it.

The file says of which GPU it is, and on what it was measured; it is read strictly and has a hash of itself.
Rates that no such GPU can have are refused. Where it says what ONNX Runtime's operators take there, choices
for a GPU that is not here are made by these times; by files of older versions, which do not, as by its row.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from errno import EFBIG
from math import isfinite
from pathlib import Path
from typing import Literal

import msgspec

from mirage_onnx.bounded_file import read_bounded
from mirage_onnx.errors import MirageError
from mirage_onnx.target import TARGETS, Rated, Target, get_target
from mirage_onnx.tune.device import PresentGpu
from mirage_onnx.tune.local import with_rates
from mirage_onnx.tune.node_times import COLD_BYTES
from mirage_onnx.tune.operator_table import OperatorTimes
from mirage_onnx.tune.rates import Rates

MOST_BYTES = 1 << 20
#: No rate is above what is published by more than what clocks differ.
ABOVE = 1.1


class ProfileFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
  """``gpu``: as messages call it; ``target``: the name of its profile; ``sha256``: of all else."""

  schema: Literal[1]
  gpu: str
  target: str
  machine: dict[str, str]
  rates: Rates
  sha256: str = ""

  def text(self) -> str:
    """What is written."""
    own = msgspec.structs.replace(self, sha256=self.hash())
    return json.dumps(msgspec.to_builtins(own), indent=1) + "\n"

  def hash(self) -> str:
    """Of what is read of it, in which a whole number of MB is a float."""
    own = msgspec.json.encode(msgspec.structs.replace(self, sha256=""))
    own = msgspec.to_builtins(msgspec.json.decode(own, type=ProfileFile))
    return hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()


def profile_of(gpu: PresentGpu, target: Target, machine: dict[str, str], rates: Rates) -> ProfileFile:
  """Of what was measured on the present GPU."""
  return ProfileFile(1, str(gpu), target.name, dict(machine), rates)


def read_profile(path: Path) -> ProfileFile:
  """The profile in a file, whose rates are possible.

  Raises:
      MirageError: PROFILE_INVALID.
  """
  try:
    found = msgspec.json.decode(read_bounded(path, MOST_BYTES), type=ProfileFile)
  except OSError as error:
    large = error.errno == EFBIG
    raise _refused(
      path, "it is larger than any profile" if large else error.strerror or str(error)
    ) from error
  except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
    why = " ".join(str(error).split())[:200]
    raise _refused(path, f"it is no profile that calibrate wrote ({why})") from error
  if found.sha256 != found.hash():
    raise _refused(path, "it does not have its SHA-256: it was changed")
  try:
    target = get_target(found.target)
  except MirageError as error:
    raise _refused(path, f"it is of {found.gpu}, for which there are no kernels") from error
  if why := _impossible(found.rates, target):
    raise _refused(path, f"{why}, which no {target.gpu} has")
  return found


def of_target(target: Target, file: ProfileFile, path: Path) -> Target:
  """``target``, which is not here, with the rates of the file.

  Raises:
      MirageError: PROFILE_INVALID, the file is of another GPU.
  """
  if file.target != target.name:
    raise _refused(path, f"it was measured on {file.gpu}, target {file.target}, not on {target.name}")
  found = with_rates(target, file.rates)
  return found if found.table else replace(found, rated=target.rated)


def of_present(gpu: PresentGpu, target: Target, file: ProfileFile, path: Path) -> Target:
  """The profile of the present GPU with the rates of the file.

  Raises:
      MirageError: PROFILE_INVALID, the file is of another GPU.
  """
  if (file.gpu, file.target) != (str(gpu), target.name):
    raise _refused(path, f"it was measured on {file.gpu}, and the GPU here is {gpu}")
  return with_rates(target, file.rates)


def differs(file: ProfileFile, machine: dict[str, str], path: Path) -> str:
  """What is another on the machine of the file than here, in a line; empty where nothing is."""
  names = ("driver", "onnxruntime")
  parts = (f"{n} {file.machine.get(n, '?')}, here {machine.get(n, '?')}" for n in names)
  found = [p for p, n in zip(parts, names, strict=True) if file.machine.get(n) != machine.get(n)]
  return f"{path} was measured with {'; '.join(found)}" if found else ""


def _impossible(rates: Rates, target: Target) -> str:
  numbers = {
    "launch_us": rates.launch_us, "stream_tbps": rates.stream_tbps, "mma_tflops": rates.mma_tflops,
  }  # fmt: skip
  if rates.chip is not None:
    numbers |= {"l2_tbps": rates.chip.l2_tbps, "barrier_us": rates.chip.barrier_us}
    numbers |= {f"mma_tflops of {kind}": value for kind, value in rates.chip.mma_tflops.items()}
  for name, value in numbers.items():
    if not isfinite(value) or value <= 0:
      return f"{name} is {value}"
  if not isfinite(rates.ramp_us):
    return f"ramp_us is {rates.ramp_us}"
  known = target.name in TARGETS or target.rated is Rated.MEASURED
  for name, value in numbers.items() if known else ():
    most = {"stream_tbps": target.published_tbps}.get(name, target.published_tflops)
    if ("tflops" in name or name == "stream_tbps") and value > ABOVE * most:
      return f"{name} is {value:g}"
  return _impossible_table(rates.table, target.published_tbps) if rates.table is not None else ""


def _impossible_table(table: OperatorTimes, tbps: float) -> str:
  """A product reads its weight, from memory where no cache keeps it; nothing takes no time."""
  for op, points in table.ops.items():
    for elements, us in points:
      if not isfinite(us) or us < 0 or elements < 1:
        return f"{op} of {elements} elements takes {us} us"
  for m, k, n, us in table.matmul:
    least = 2 * k * n / (ABOVE * tbps * 1e6) if 2 * k * n >= COLD_BYTES else 0.0
    if not isfinite(us) or us < least or min(m, k, n) < 1:
      return f"a product of {m} x {k} x {n} takes {us} us"
  return ""


def _refused(path: Path, why: str) -> MirageError:
  return MirageError("PROFILE_INVALID", f"{path}: {why}")
