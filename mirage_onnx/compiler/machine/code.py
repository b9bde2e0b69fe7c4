"""Machine code of sm_90 as steps.

An instruction is 16 bytes: the operation in its lowest 12 bits, of which the upper three say what kind
its operands are of, a predicate (12 to 15), the result (16 to 23) and three operands (24 to 31, 32 to 39,
64 to 71). Found by disassembling 400 kernels with nvdisasm of CUDA 13.1. What is not known here is taken
to write one register.
"""

import struct

from mirage_onnx.compiler.image_facts import section
from mirage_onnx.compiler.machine.steps import MachineStep, WgmmaStep

_BYTES = 16
_ZERO, _ALWAYS, _NEVER = 255, 7, 15
_BRA, _EXIT, _RET, _KILL = 0x947, 0x94D, 0x950, 0x95B
#: Jumps whose target is in a register or a constant.
_UNKNOWN_JUMPS = (0x949, 0x94A, 0x94C, 0x958, 0x959)
_HGMMA, _HGMMA_SHARED, _WARPGROUP = 0xDF0, 0x9F0, 0x9C5
#: Operations (lower nine bits) of uniform registers, predicates, memory and barriers: they write no register.
_NO_RESULT = frozenset((
  0x001, 0x00B, 0x00C, 0x01C, 0x02D, 0x02E, 0x044, 0x082, 0x086, 0x087, 0x08C, 0x090, 0x091, 0x092, 0x096,
  0x097, 0x099, 0x0A4, 0x0A5, 0x0B9, 0x0CA, 0x102, 0x118, 0x11A, 0x11B, 0x11D, 0x12D, 0x12E, 0x141, 0x144,
  0x145, 0x146, 0x147, 0x148, 0x14D, 0x150, 0x186, 0x187, 0x188, 0x18E, 0x18F, 0x192, 0x1AB, 0x1AE, 0x1AF,
  0x1B0, 0x1B2, 0x1B3, 0x1C3, 0x1C5, 0x1C6, 0x1C7, 0x1C8,
))  # fmt: skip
#: Whether a barrier's phase is complete.
_PHASE_CHECK = 0x5A7
#: Loads, with the size of what they load in bits 73 to 75.
_LOADS = frozenset((0x180, 0x181, 0x182, 0x183, 0x184))
_WIDE, _PAIR, _LDSM, _HMMA = 0x025, 0x805, 0x03B, 0x03C
#: Select, minimum, product, sum, both, conversion of pairs; copy and the functions of one number.
_FFMA = 0x023
_FLOATS = frozenset((0x008, 0x009, 0x020, 0x021, _FFMA, 0x03E))
_FLOATS_OF_ONE = (0x002, 0x108)
#: Constants, what a special register holds, and loads.
_PLAIN = frozenset((*_LOADS, 0x119, 0x03B))


class UnknownMachineCodeError(Exception):
  """Something that decides where a kernel goes is not understood."""


def machine_steps(image: bytes, kernel: str) -> list[MachineStep]:
  """The instructions of a kernel; a call goes on behind it.

  Raises:
      UnknownMachineCodeError: there is none, or it has jumps to where only a run knows.
  """
  code = section(image, f".text.{kernel}")
  if not code or len(code) % _BYTES:
    raise UnknownMachineCodeError(f"no code of {kernel}")
  return [_step(at, *struct.unpack_from("<QQ", code, at)) for at in range(0, len(code), _BYTES)]


def _step(at: int, low: int, high: int) -> MachineStep:
  operation, when = low & 0xFFF, low >> 12 & 15
  if operation in _UNKNOWN_JUMPS:
    raise UnknownMachineCodeError(f"operation {operation:#x} at {at:#x}")
  if when == _NEVER:
    return MachineStep()
  may = when != _ALWAYS
  if operation == _BRA:
    other = high >> 23 & 0x1F  # another predicate, or of which kind the jump is
    return MachineStep(to=(_target(at, low, high),), falls=may or other != _ALWAYS)
  if operation in (_EXIT, _RET, _KILL):
    return MachineStep(falls=may)
  if operation in (_HGMMA, _HGMMA_SHARED):
    return _product(operation, low, high)
  if operation == _WARPGROUP:
    return MachineStep(ends=high >> 8 & 255 if high >> 16 & 1 else None)
  result, base = low >> 16 & 255, operation & 0x1FF
  if base in _NO_RESULT or operation == _PHASE_CHECK or result == _ZERO:
    return MachineStep()
  return MachineStep(
    _registers(result, _width(operation, low, high)),
    _copied(operation, low, high),
    _is_plain(operation, low, high),
    may,
    reads=_read(operation, low, high),
  )


def _read(operation: int, low: int, high: int) -> tuple[str, ...]:
  """Registers that an operation on floats reads; of others none."""
  base, form = operation & 0x1FF, operation >> 9
  first, second, third = low >> 24 & 255, low >> 32 & 255, high & 255
  found = [first] if base in _FLOATS else []
  found += [second] if base in (*_FLOATS, *_FLOATS_OF_ONE) and form == 1 else []
  found += [third] if base in _FLOATS and (form == 2 or base == _FFMA) else []
  return tuple(f"R{r}" for r in found if r != _ZERO)


def _target(at: int, low: int, high: int) -> int:
  """The place that a jump goes to: its distance is in bits 16 to 23 and from 34 on, by four bytes."""
  high_part = (low >> 34) | (high & 0x3FFFF) << 30
  distance = high_part << 8 | low >> 16 & 255
  distance -= 1 << 56 if distance >> 55 else 0
  return (at + _BYTES + 4 * distance) // _BYTES


def _product(operation: int, low: int, high: int) -> MachineStep:
  columns = ((low >> 53 & 31) + 1) * 8
  result, a, sums = low >> 16 & 255, low >> 24 & 255, high & 255
  count = columns // 2
  product = WgmmaStep(
    columns,
    _registers(a, 4) if operation == _HGMMA else (),
    () if sums == _ZERO else _registers(sums, count),
  )
  return MachineStep(_registers(result, count), product=product, commits=not high >> 20 & 7)


def _registers(first: int, count: int) -> tuple[str, ...]:
  return tuple(f"R{r}" for r in range(first, first + count))


def _width(operation: int, low: int, high: int) -> int:
  base = operation & 0x1FF
  if base in _LOADS or operation == 0xB82:
    return {5: 2, 6: 4}.get(high >> 9 & 7, 1)
  if base in (_WIDE, 0x027):
    return 2 if base == _WIDE else 1
  if operation == _PAIR:
    return 2
  if base == _LDSM:
    return 1 << (high >> 8 & 3)
  return 4 if base == _HMMA else 1


def _copied(operation: int, low: int, high: int) -> str | None:
  """The register that MOV, or the IMAD that is one, copies."""
  if operation == 0x202:
    return f"R{low >> 32 & 255}"
  if operation == 0x224 and low >> 24 & 255 == low >> 32 & 255 == _ZERO and high & 255 != _ZERO:
    return f"R{high & 255}"
  return None


def _is_plain(operation: int, low: int, high: int) -> bool:
  base = operation & 0x1FF
  if base in _PLAIN or operation in (_PAIR, 0xB82, 0x802, 0xA02, 0xC02):
    return True
  factors = low >> 24 & 255 == _ZERO
  if operation in (0x424, 0x824, 0xE24, 0xA24, 0xC24, 0x624):  # IMAD with a constant
    return factors and (high & 255 == _ZERO or operation == 0x424)
  return operation == 0x224 and factors and high & 255 == _ZERO
