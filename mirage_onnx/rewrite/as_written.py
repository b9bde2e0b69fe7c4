"""A model that was written under temporary names, as a reader will find it under its own.

Hard links in a folder of their own, for no byte is copied: the model refers to its data by name.
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
  """The path of the model in that folder; None where the file system has no hard links.

  ``written``: the new files by the names that they will have. ``source``: the folder of the
  weights that stay where they are.
  """
  folder = target.with_name(f".{target.name}.{os.getpid()}.check")
  try:
    try:
      folder.mkdir()
      for name, file in written.items():
        os.link(file, folder / name)
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
    shutil.rmtree(folder, ignore_errors=True)


def remove_leftover_folders(target: Path, runs: Callable[[int], bool]) -> None:
  """Folders of a process that was killed."""
  pattern = re.compile(re.escape(f".{target.name}.") + r"(\d+)\.check")
  with contextlib.suppress(OSError):
    for folder in list(target.parent.iterdir()):
      found = pattern.fullmatch(folder.name)
      if found and not runs(int(found[1])):
        shutil.rmtree(folder, ignore_errors=True)
