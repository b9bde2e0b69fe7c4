"""The bundle: every cubin and plan of a model as one uint8 initializer.

Little endian: ``MUGRAPH1``, u32 version, u32 entry count, entries {u32 kind, u32 id, u64 offset,
u64 size, 32 bytes SHA-256 of the section}, then the sections in order, each at a multiple of 16.
Kinds: 1 cubin, 2 plan (ASCII), 3 provenance (zlib-compressed JSON, not read by the C++ side).
"""

import hashlib
import json
import struct
import zlib
from dataclasses import dataclass
from typing import Any

from mirage_onnx.errors import MirageError

MAGIC = b"MUGRAPH1"
VERSION = 1
CUBIN, PLAN, PROVENANCE = 1, 2, 3
MAX_ENTRIES = 4096
MAX_PROVENANCE_BYTES = 64 << 20  # of one entry, decompressed: bounds what a zip bomb can cost

_HEADER = struct.Struct("<8sII")
_ENTRY = struct.Struct("<IIQQ32s")


@dataclass(frozen=True, slots=True)
class Bundle:
  """Contents of a bundle. ``plans[k]`` is run by ``MuGraph_k``; plans name cubins by index."""

  cubins: tuple[bytes, ...]
  plans: tuple[str, ...]
  provenance: tuple[dict[str, Any], ...] = ()


def write_bundle(bundle: Bundle) -> bytes:
  """The bytes of a bundle; equal bundles give equal bytes.

  Raises:
      MirageError: BUNDLE_INVALID when a plan is not ASCII or there are too many sections.
  """
  if not all(plan.isascii() for plan in bundle.plans):
    raise MirageError("BUNDLE_INVALID", "a plan must be ASCII text")
  sections = [(CUBIN, i, cubin) for i, cubin in enumerate(bundle.cubins)]
  sections += [(PLAN, i, plan.encode()) for i, plan in enumerate(bundle.plans)]
  sections += [(PROVENANCE, i, _pack(record)) for i, record in enumerate(bundle.provenance)]
  if len(sections) > MAX_ENTRIES:
    raise MirageError("BUNDLE_INVALID", f"{len(sections)} sections, at most {MAX_ENTRIES}")
  out = bytearray(_HEADER.pack(MAGIC, VERSION, len(sections)))
  offset = _aligned(_HEADER.size + _ENTRY.size * len(sections))
  for kind, number, data in sections:
    out += _ENTRY.pack(kind, number, offset, len(data), hashlib.sha256(data).digest())
    offset = _aligned(offset + len(data))
  for _, _, data in sections:
    out += bytes(_aligned(len(out)) - len(out)) + data
  return bytes(out)


def read_bundle(data: bytes) -> Bundle:
  """Reads a bundle that ``write_bundle`` wrote, and checks every byte of it.

  Raises:
      MirageError: BUNDLE_INVALID with what is wrong.
  """
  if len(data) < _HEADER.size or data[:8] != MAGIC:
    raise MirageError("BUNDLE_INVALID", "it does not begin with MUGRAPH1")
  _, version, count = _HEADER.unpack_from(data)
  if version != VERSION:
    raise MirageError("BUNDLE_INVALID", f"version {version}, this program reads {VERSION}")
  end = _HEADER.size + _ENTRY.size * count
  if count > MAX_ENTRIES or end > len(data):
    raise MirageError("BUNDLE_INVALID", f"{count} entries do not fit in {len(data)} bytes")
  found: dict[int, list[bytes]] = {CUBIN: [], PLAN: [], PROVENANCE: []}
  last_kind = 0
  for index in range(count):
    kind, number, offset, size, digest = _ENTRY.unpack_from(data, _HEADER.size + _ENTRY.size * index)
    # Sections follow each other without gaps, so a byte outside every hash must be padding.
    in_order = kind in found and kind >= last_kind and number == len(found[kind])
    if not in_order or offset != _aligned(end) or any(data[end:offset]):
      raise MirageError("BUNDLE_INVALID", f"entry {index} is out of order or out of place")
    section = data[offset : offset + size]
    if len(section) != size:
      raise MirageError("BUNDLE_INVALID", f"entry {index} is cut off")
    if hashlib.sha256(section).digest() != digest:
      raise MirageError("BUNDLE_INVALID", f"the SHA-256 of entry {index} does not match")
    found[kind].append(section)
    last_kind, end = kind, offset + size
  if end != len(data):
    raise MirageError("BUNDLE_INVALID", f"{len(data) - end} bytes after the last section")
  try:
    plans = tuple(plan.decode("ascii") for plan in found[PLAN])
    provenance = tuple(_unpack(record) for record in found[PROVENANCE])
  except (ValueError, zlib.error, RecursionError) as error:
    raise MirageError("BUNDLE_INVALID", f"a section cannot be decoded: {error}") from error
  return Bundle(tuple(found[CUBIN]), plans, provenance)


def _aligned(offset: int) -> int:
  return -(-offset // 16) * 16


def _pack(record: dict[str, Any]) -> bytes:
  text = json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
  return zlib.compress(text.encode(), 9)


def _unpack(data: bytes) -> dict[str, Any]:
  stream = zlib.decompressobj()
  text = stream.decompress(data, MAX_PROVENANCE_BYTES)
  if not stream.eof or stream.unused_data:
    raise ValueError("provenance is cut off, too long, or followed by other bytes")
  record = json.loads(text)
  if not isinstance(record, dict):
    raise ValueError("provenance is not a JSON object")  # noqa: TRY004 (a decode error)
  return record
