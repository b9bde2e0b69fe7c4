"""What a compiled image says of its kernels, as the custom-op library reads it (cpp/ort_custom_ops/image.cc).

An ELF64 file: a kernel is a section ``.text.NAME``, and ``.nv.info.NAME`` holds its attributes, each
{u8 form, u8 attribute, u16 value or size} and as many bytes as the size says where the form is 4. Its
registers are in ``.nv.info``, by the number of its symbol. Found by compiling kernels.
"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_HEADER, _SECTION = 64, 64
_FORM_BYTES = 4
_THREADS, _PARAMETER, _REGISTERS, _CLUSTER = 0x05, 0x17, 0x2F, 0x3D


@dataclass(frozen=True, slots=True)
class ImageKernel:
  """``parameter_bytes``: of each parameter. ``threads`` of a block, ``cluster``: blocks; 0: not said."""

  parameter_bytes: tuple[int, ...]
  threads: int
  cluster: int


@dataclass(frozen=True, slots=True)
class ImageFacts:
  """``registers``: of every kernel of the image, in no order."""

  kernels: Mapping[str, ImageKernel]
  registers: tuple[int, ...]


def image_facts(image: bytes) -> ImageFacts | None:
  """What an image says, or None where it is cut, or no image of NVIDIA's machine."""
  try:
    return _facts(image)
  except (struct.error, LookupError, ValueError):
    return None


def section(image: bytes, name: str) -> bytes | None:
  """The bytes of a section, or None where the image is cut, or there is none of that name."""
  try:
    return (_sections(image) or {}).get(name)
  except (struct.error, LookupError, ValueError):
    return None


def _sections(image: bytes) -> dict[str, bytes] | None:
  if len(image) < _HEADER or image[:7] != b"\x7fELF\x02\x01\x01":
    return None
  kind, machine = struct.unpack_from("<HH", image, 16)
  (table,) = struct.unpack_from("<Q", image, 40)
  count, names = struct.unpack_from("<HH", image, 60)
  if (kind, machine) != (2, 190):
    return None
  sections = [struct.unpack_from("<II8x8xQQ", image, table + _SECTION * i) for i in range(count)]
  strings = sections[names][2]

  def name(at: int) -> str:
    begin = strings + at
    return image[begin : image.index(b"\0", begin)].decode()

  return {name(at): image[offset : offset + size] for at, _, offset, size in sections}


def _facts(image: bytes) -> ImageFacts | None:
  found = _sections(image)
  if found is None:
    return None
  kernels = {}
  for called in found:
    if called.startswith(".text."):
      kernels[called.removeprefix(".text.")] = _kernel(found[".nv.info." + called.removeprefix(".text.")])
  registers = (
    struct.unpack("<II", data)[1] for a, _, data in _attributes(found[".nv.info"]) if a == _REGISTERS
  )
  return ImageFacts(kernels, tuple(registers))


def _kernel(info: bytes) -> ImageKernel:
  parameters, threads, cluster = dict[int, int](), 0, 1
  for attribute, form, data in _attributes(info):
    if form != _FORM_BYTES:
      continue
    if attribute == _PARAMETER:
      _, ordinal, _, packed = struct.unpack("<IHHI", data)
      parameters[ordinal] = packed >> 18
    elif attribute == _THREADS:
      threads = struct.unpack("<III", data)[0]
    elif attribute == _CLUSTER:
      cluster = struct.unpack("<III", data)[0]
  return ImageKernel(tuple(parameters[i] for i in sorted(parameters)), threads, cluster)


def _attributes(info: bytes) -> Iterator[tuple[int, int, bytes]]:
  """(attribute, form, its bytes)."""
  at = 0
  while at < len(info):
    form, attribute, value = struct.unpack_from("<BBH", info, at)
    at += 4
    size = value if form == _FORM_BYTES else 0
    yield attribute, form, info[at : at + size]
    at += size
