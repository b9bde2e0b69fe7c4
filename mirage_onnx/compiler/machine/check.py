"""Whether the assembler kept a kernel's tensor-core operands: its machine code against its PTX.

ptxas of CUDA 12.9 and 13.0 gave queries, which stay in registers for a whole loop, and what a second
product takes the same registers where a branch stood between the two: from the second iteration on the
first product read what the last iteration had left (found on an H100, where such a kernel was wrong; CUDA
13.1 does not). No test of the text can see that. So for every wgmma, from each loop around it, the places
where its registers may have been computed (``Origin``) must be the same in both, so must the loops of the
whole kernel that compute them, and nothing may write registers of one under way.
"""

from mirage_onnx.compiler.machine.code import UnknownMachineCodeError, machine_steps
from mirage_onnx.compiler.machine.origins import Origin, origins, places
from mirage_onnx.compiler.machine.ptx import ptx_steps
from mirage_onnx.compiler.machine.steps import MachineFlow
from mirage_onnx.compiler.machine.under_way import touched

_OPERANDS = "operand A", "sums"
_COMPUTED = Origin.HERE | Origin.EARLIER


def miscompiled(ptx: str, image: bytes, kernel: str) -> str | None:
  """What is wrong with the wgmma of a kernel's machine code, or None."""
  try:
    return _wrong(ptx, image, kernel)
  except (LookupError, ValueError, AssertionError) as error:  # an assembler that nobody has tried
    return f"it is not understood ({type(error).__name__}: {error})"


def _wrong(ptx: str, image: bytes, kernel: str) -> str | None:
  try:
    code = MachineFlow(machine_steps(image, kernel))
  except UnknownMachineCodeError as error:
    return str(error)
  said = MachineFlow(ptx_steps(ptx, kernel))
  products = [[n for n, s in enumerate(flow.steps) if s.product] for flow in (said, code)]
  if len(products[0]) != len(products[1]):
    return f"{len(products[0])} wgmma became {len(products[1])}"
  found = [{x.head: origins(flow, x) for x in flow.loops} for flow in (said, code)]
  computed = places(said), places(code)
  for n, (at, to) in enumerate(zip(*products, strict=True)):
    ours, theirs = said.steps[at].product, code.steps[to].product
    assert ours is not None
    assert theirs is not None
    around = said.loops_of(at), code.loops_of(to)
    if ours.columns != theirs.columns or len(ours.a) != len(theirs.a) or len(around[0]) != len(around[1]):
      return f"wgmma {n} is another one"
    for inner, outer in zip(*around, strict=True):
      pairs = zip(found[0][inner.head][at], found[1][outer.head][to], _OPERANDS, strict=True)
      for wanted, got, what in pairs:
        if not _same(wanted, got):
          return f"registers of {what} of wgmma {n} do not keep what it is given ({wanted!r}, {got!r})"
    for first, second, what in zip(computed[0][at], computed[1][to], _OPERANDS, strict=True):
      if (first ^ second) & ~int(Origin.PLAIN):
        return f"registers of {what} of wgmma {n} are computed elsewhere ({first:#x}, {second:#x})"
  return touched(code)


def _same(wanted: Origin, got: Origin) -> bool:
  """Constants and what memory holds may be had again anywhere, and zeros need no registers."""
  if wanted & _COMPUTED != got & _COMPUTED:
    return not got and wanted is Origin.PLAIN
  if got & Origin.OUTSIDE:
    return bool(wanted & (Origin.OUTSIDE | Origin.PLAIN))
  return not wanted & Origin.OUTSIDE or bool(got & Origin.PLAIN)
