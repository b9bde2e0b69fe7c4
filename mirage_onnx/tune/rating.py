"""Which rates the targets of a run have: of a profile file, measured here, or of their rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mirage_onnx import events
from mirage_onnx.errors import MirageError
from mirage_onnx.target import Rated, Target

if TYPE_CHECKING:  # of a file only: a model with nothing to gain imports nothing that times
  from mirage_onnx.tune.profile_file import ProfileFile


@dataclass(frozen=True, slots=True)
class Rating:
  """``file``: what ``path`` has; None where no file was given."""

  path: Path | None = None
  file: ProfileFile | None = None

  @classmethod
  def of(cls, path: str | Path | None, locked: bool) -> Rating:
    """What was given, read.

    Raises:
        MirageError: PROFILE_INVALID; OPTION_INVALID, a lock has chosen already.
    """
    if path is None:
      return cls()
    if locked:
      raise MirageError("OPTION_INVALID", "--locked chooses nothing, so it takes no --profile")
    from mirage_onnx.tune.profile_file import read_profile

    return cls(Path(path), read_profile(Path(path)))

  def target(self, given: str | None) -> str | None:
    """The target that was asked for; of a file, if none was, its own: local, if that is here."""
    if self.file is None or given is not None:
      return given
    from mirage_onnx.tune.device import present_gpu

    gpu = present_gpu()
    return "local" if gpu is not None and str(gpu) == self.file.gpu else self.file.target

  def with_rates(self, targets: Sequence[Target], measure: bool, emit: events.Emit) -> tuple[Target, ...]:
    """``targets`` with the rates that there are of them; ``measure``: the one is the GPU that is here.

    Raises:
        MirageError: PROFILE_INVALID; NO_GPU, DRIVER_TOO_OLD.
    """
    if self.file is None or self.path is None:
      (first, *rest) = targets
      return (_measured(first) if measure else first, *rest)
    from mirage_onnx.tune.profile_file import differs, of_present, of_target

    if measure:
      from mirage_onnx.tune.device import driver_api_version
      from mirage_onnx.tune.local import usable_gpu
      from mirage_onnx.tune.machine import driver_version, machine_of

      gpu = usable_gpu()
      found = of_present(gpu, targets[0], self.file, self.path)
      machine = machine_of(gpu, driver_version(driver_api_version())).text
      if said := differs(self.file, machine, self.path):
        emit(events.Warned(said))
      return (found,)
    if len(targets) == 1:
      return (of_target(targets[0], self.file, self.path),)
    own = [t for t in targets if t.name == self.file.target] or targets[:1]
    return tuple(of_target(t, self.file, self.path) if t in own else t for t in targets)


def _measured(target: Target) -> Target:
  """Of the GPU that is here; measured now, or kept, where its row was not."""
  from mirage_onnx.tune.local import local_target, with_kept_table

  return with_kept_table(target) if target.rated is Rated.MEASURED else local_target()
