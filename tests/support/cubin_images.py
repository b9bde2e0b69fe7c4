"""ELF files with what the custom-op library reads of a cubin, for drivers that are not there."""

import struct
from dataclasses import dataclass

PROGBITS, SYMTAB, STRTAB, NOBITS, INFO = 1, 2, 3, 8, 0x70000000
HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
SECTION = struct.Struct("<IIQQQQIIQQ")
SYMBOL = struct.Struct("<IBBHQQ")


@dataclass(frozen=True)
class Compiled:
  """A kernel: what it says of itself. ``sizes``: bytes of each parameter."""

  sizes: tuple[int, ...]
  threads: int = 32
  cluster: int = 1
  shared: int = 0

  def info(self):
    offsets = [8 * i for i in range(len(self.sizes))]
    places = zip(offsets, self.sizes, strict=True)
    out = b"".join(_bytes(0x17, struct.pack("<IHHI", 0, i, at, size << 18))
                   for i, (at, size) in enumerate(places))  # fmt: skip
    if self.cluster > 1:
      out += struct.pack("<BBH", 1, 0x3E, 0) + _bytes(0x3D, struct.pack("<III", self.cluster, 1, 1))
    total = offsets[-1] + self.sizes[-1] if self.sizes else 0
    out += _bytes(0x05, struct.pack("<III", self.threads, 1, 1))
    return out + struct.pack("<BBH", 3, 0x19, total)


def cubin_image(kernels, extra=None):
  """The image of kernels by name, with further sections by name."""
  sections = []  # name, type, data, entry size, link, info
  names = {k: 4 + 2 * i for i, k in enumerate(kernels)}  # sections of code
  strings = b"\0" + b"".join(f"{k}\0".encode() for k in kernels)
  symbols = SYMBOL.pack(0, 0, 0, 0, 0, 0)
  for k, at in names.items():
    symbols += SYMBOL.pack(strings.index(f"\0{k}\0".encode()) + 1, 0x12, 0, at, 0, 16)
  sections += [(".strtab", STRTAB, strings, 0, 0, 0), (".symtab", SYMTAB, symbols, 24, 2, 1)]
  for k, compiled in kernels.items():
    sections.append((f".text.{k}", PROGBITS, bytes(16), 0, 3, 0))
    sections.append((f".nv.info.{k}", INFO, compiled.info(), 0, 3, names[k]))
  for k, compiled in kernels.items():
    if compiled.shared:
      sections.append((f".nv.shared.{k}", NOBITS, compiled.shared, 0, 0, 0))
  sections += [(name, PROGBITS, data, 0, 0, 0) for name, data in (extra or {}).items()]
  table = b"\0.shstrtab\0" + b"".join(f"{name}\0".encode() for name, *_ in sections)
  headers = [SECTION.pack(0, 0, 0, 0, 0, 0, 0, 0, 0, 0)]
  body = bytearray(HEADER.size)
  for name, kind, data, entry, link, info in ((".shstrtab", STRTAB, table, 0, 0, 0), *sections):
    body += bytes(-len(body) % 8)
    size = data if kind == NOBITS else len(data)
    at = table.index(b"\0" + name.encode() + b"\0") + 1
    headers.append(SECTION.pack(at, kind, 0, 0, len(body), size, link, info, 1, entry))
    if kind != NOBITS:
      body += data
  body += bytes(-len(body) % 8)
  ident = b"\x7fELF\x02\x01\x01\x41\x08" + bytes(7)
  body[: HEADER.size] = HEADER.pack(
    ident, 2, 190, 1, 0, 0, len(body), 0, 64, 56, 0, SECTION.size, len(headers), 1
  )
  return bytes(body) + b"".join(headers)


def _bytes(attribute, data):
  return struct.pack("<BBH", 4, attribute, len(data)) + data
