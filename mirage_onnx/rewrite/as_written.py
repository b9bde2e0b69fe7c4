"""A model that was written under temporary names, as a reader will find it under its own.

Where it was, if it has no new data. Else in a folder of its own, to which its files move meanwhile, for
the model refers to its data by name: no byte is copied. (A hard link for each would do but for onnx's
checker, from 1.23 on: it takes a data file of several links for an attack. Weights that stay where they
are beside new ones are links all the same, with which the checker refuses the original, too.)
"""

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import onnx
from onnx.external_data_helper import ExternalDataInfo, uses_external_data

from mirage_onnx.rewrite.external import all_tensors


@contextlib.contextmanager
def as_written(
  target: Path, written: Mapping[str, Path], model: onnx.ModelProto, source: Path | None
) -> Iterator[Path | None]:
  """The path of the model there; None where it takes hard links, and the file system has none.

  ``written``: the new files by the names that they will have. ``source``: the folder of the
  weights that stay where they are: the target's, if ``written`` is but the model.
  """
  if len(written) == 1:
    yield written[target.name]
    return
  folder, moved = target.with_name(f".{target.name}.{os.getpid()}.check"), list[tuple[Path, Path]]()
  try:
    try:
      folder.mkdir()
      for name, file in written.items():
        os.rename(file, folder / name)
        moved.append((file, folder / name))
      for name in {ExternalDataInfo(t).location for t in all_tensors(model) if uses_external_data(t)}:
        place = folder / os.path.normpath(name)
        if name not in written and source is not None:
          place.parent.mkdir(parents=True, exist_ok=True)
          os.link(os.path.realpath(source / name), place)
    except OSError:
      yield None
    else:
      yield folder / target.name
  finally:
    for file, place in moved:
      os.rename(place, file)
    shutil.rmtree(folder, ignore_errors=True)


def remove_leftover_folders(target: Path, runs: Callable[[int], bool]) -> None:
  """Folders of a process that was killed."""
  pattern = re.compile(re.escape(f".{target.name}.") + r"(\d+)\.check")
  with contextlib.suppress(OSError):
    for folder in list(target.parent.iterdir()):
      found = pattern.fullmatch(folder.name)
      if found and not runs(int(found[1])):
        shutil.rmtree(folder, ignore_errors=True)
