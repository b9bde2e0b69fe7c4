"""Compiled kernels from run to run, by the hash of all that they are made of.

A file is one line of JSON (the report of ptxas, or why the compiler refused, with the hash of the
image), then the image. What is damaged, or cannot be read, is compiled again, and so is what is no image
of this kernel by its own attributes: name, parameters, threads, cluster, registers. They are machine code,
so they are kept in a folder that is private to the user (``private_folder``) or not at all.
"""

import contextlib
import hashlib
import json
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from mirage_onnx.bounded_file import read_bounded
from mirage_onnx.codegen.source import KernelSource
from mirage_onnx.compiler.cubin import Cubin
from mirage_onnx.compiler.image_facts import ImageKernel, image_facts
from mirage_onnx.errors import Rejection
from mirage_onnx.superopt.atomic import replace_file
from mirage_onnx.superopt.cache_folders import cache_folder
from mirage_onnx.superopt.journal_lines import UNREADABLE
from mirage_onnx.superopt.private_folder import is_private, make_private

#: Of the texts and of what is kept beside them; counted up when the form of a file changes.
VERSION = 1
#: The packages that compile.
PACKAGES = ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12", "cuda-core", "cuda-bindings")


#: Of a kernel's parameters: a tensor, the size of an axis, what the copy engine is told of a tensor.
POINTER_BYTES, SIZE_BYTES, MAP_BYTES = 8, 4, 128


class KeptCubins:
  """What was compiled in ``folder``; nothing is kept where that is None.

  ``compiler``: all that decides beside text, name and architecture.
  """

  def __init__(self, folder: Path | None, compiler: str) -> None:
    self.folder, self._compiler = folder, compiler

  @classmethod
  def of_user(cls, compiler: str) -> "KeptCubins":
    """Those in the user's cache folder. ``compiler``: its version, and the options of every try."""
    return cls(cache_folder("cubins"), f"{VERSION} {compiler} {_packages()}")

  def path(self, source: KernelSource, arch: str) -> Path | None:
    """The file of a kernel."""
    key = hashlib.sha256(json.dumps([self._compiler, arch, source.name, source.text]).encode()).hexdigest()
    return None if self.folder is None else self.folder / f"{key}.cubin"

  def get(self, source: KernelSource, arch: str) -> Cubin | Rejection | None:
    """What the compiler made of this text, or None where it has to be asked."""
    path = self.path(source, arch)
    try:
      if path is None or not is_private(path.parent):
        return None
      line, _, image = read_bounded(path).partition(b"\n")
      value = json.loads(line)
      return _decode(value, image, source) if value["key"] == path.stem else None
    except (OSError, *UNREADABLE):
      return None

  def put(self, source: KernelSource, arch: str, made: Cubin | Rejection) -> None:
    """Keep what the compiler made of a text."""
    path = self.path(source, arch)
    if path is None:
      return
    value, image = _encode(made)
    with contextlib.suppress(OSError):
      make_private(path.parent)
      if is_private(path.parent):
        replace_file(path, json.dumps({"key": path.stem, **value}).encode() + b"\n" + image)


@cache
def _packages() -> str:
  found = []
  for package in PACKAGES:
    with contextlib.suppress(metadata.PackageNotFoundError):
      found.append(f"{package} {metadata.version(package)}")
  return " ".join(found)


def _encode(made: Cubin | Rejection) -> tuple[dict[str, Any], bytes]:
  if isinstance(made, Rejection):
    return {"refused": [made.code, made.reason, list(made.nodes)]}, b""
  numbers = [made.registers, made.smem_bytes, made.stack_bytes, made.spill_bytes]
  digest = hashlib.sha256(made.image).hexdigest()
  return {"numbers": numbers, "log": made.log, "image": digest}, made.image


def _decode(value: Mapping[str, Any], image: bytes, source: KernelSource) -> Cubin | Rejection | None:
  if "refused" in value:
    code, reason, nodes = value["refused"]
    return Rejection(str(code), str(reason), tuple(nodes))
  if hashlib.sha256(image).hexdigest() != value["image"]:
    return None
  registers, smem, stack, spills = (int(n) for n in value["numbers"])
  if not _is_image_of(image, source, registers):
    return None
  return Cubin(image, registers, smem, stack, spills, str(value["log"]), 0.0)


def _is_image_of(image: bytes, source: KernelSource, registers: int) -> bool:
  """Whether an image says of itself what a launch of the kernel needs, and what was kept of it."""
  counts = (POINTER_BYTES, source.args), (SIZE_BYTES, source.sizes), (MAP_BYTES, source.maps)
  parameters = tuple(size for size, some in counts for _ in some)
  facts = image_facts(image)
  expected = {source.name: ImageKernel(parameters, source.block, source.cluster)}
  return facts is not None and facts.kernels == expected and facts.registers == (registers,)
