"""Canonical text of a UGraph: printing and parsing are inverse, and the text is the cache key.

One statement a line; ``-`` is "none". Example (RMSNorm without gamma, then a linear layer):

    ugraph 1
    tensor i0 f16[a0,a1] input
    tensor i1 f16[a2,a1] weight
    tensor o0 f16[a0,a2] output
    kernel k0 grid=a2,a0 cluster=a1 loop=a1
      %0 = load i0 imap=-,a0 cmap=a1 fmap=a1 : f16[a0,a1] loop B_frag
      %1 = load i1 imap=a2,- cmap=a1 fmap=a1 : f16[a2,a1] loop A_frag
      %2 = matmul[a1] %0 %1 : f32[a0,a2] loop C_frag
      ...
      save o0 = %9 omap=a2,a0

A box of what lies in memory names the dimensions of that, slowest first, each by its axes and,
where it holds only some elements, by the first one of how many: ``in a0 a1@64/192 @2/3``. ``upto a3<i2``:
elements of a3 from the number on that i2 holds do not matter (``<=``: those behind it). ``places``: each
element is its own index.
"""

import re
from fractions import Fraction

from mirage_onnx.ir.band import Band
from mirage_onnx.ir.dtype import DType
from mirage_onnx.ir.ugraph import BlockOp, Kernel, KTensor, Layout, Phase, Save, UGraph
from mirage_onnx.ir.view import Window

VERSION = 1


def _names(names: tuple[str | None, ...]) -> str:
  return ",".join(n or "-" for n in names)


def _read_names(text: str) -> tuple[str | None, ...]:
  return tuple(None if n == "-" else n for n in text.split(",")) if text else ()


def _print_op(index: int, op: BlockOp) -> str:
  head = op.op
  if op.reduced:
    head += f"[{','.join(op.reduced)}]"
  if op.value is not None:
    head += f"[{op.value}]"
  parts = [head]
  if op.tensor:
    parts.append(op.tensor)
    parts.append(f"imap={_names(op.imap)}")
    parts.append(f"cmap={op.cmap or '-'}")
    parts.append(f"fmap={op.fmap or '-'}")
  parts += [f"%{a}" for a in op.args]
  return f"  %{index} = {' '.join(parts)} : {op.dtype}[{','.join(op.axes)}] {op.phase} {op.layout}"


def print_kernel(kernel: Kernel) -> str:
  lines = [
    f"kernel {kernel.name} grid={','.join(kernel.grid)} "
    f"cluster={kernel.cluster or '-'} loop={kernel.loop or '-'}"
  ]
  lines += [_print_op(i, op) for i, op in enumerate(kernel.ops)]
  lines += [f"  save {s.tensor} = %{s.arg} omap={_names(s.omap)}" for s in kernel.saves]
  return "\n".join(lines) + "\n"


def print_tensor(t: KTensor) -> str:
  words = [f"tensor {t.name} {t.dtype}[{','.join(t.axes)}] {t.role}", *["in"] * bool(t.windows)]
  for w in t.windows:
    part = "" if w.full is None else f"@{w.picks or w.start}/{w.full}"
    often = f"*{w.repeat}" if w.repeat > 1 else ""
    words.append(f"{','.join(w.axes)}{often}{part}")
  if t.limit:
    words.append(f"upto {t.limit[0]}{'<=' if t.limit[2] else '<'}{t.limit[1]}")
  if t.band:
    words.append(f"seen {t.band.text}")
  if t.places:
    words.append("places")
  return " ".join(words)


def print_ugraph(graph: UGraph) -> str:
  lines = [f"ugraph {VERSION}", *map(print_tensor, graph.tensors)]
  return "\n".join(lines) + "\n" + "".join(map(print_kernel, graph.kernels))


_LIMIT = r"(?: upto ([^\s<]+)(<=?)([^\s=]\S*))?"
_BAND = r"(?: seen ([^\s:]+):([^\s:]+) (-?\d*)\.\.(-?\d*) else (\S+)( sharp)?)?"
_TENSOR = re.compile(r"tensor (\S+) (\w+)\[([^\]]*)\] (\w+)(?: in (.+?))?" + _LIMIT + _BAND + r"( places)?")
_WINDOW = re.compile(r"([^@*]*)(?:\*([1-9]\d*))?(?:@(?:(\d+)|([^\d/][^/]*))/(\d+))?")
_KERNEL = re.compile(r"kernel (\S+) grid=(\S*) cluster=(\S+) loop=(\S+)")
_OP = re.compile(r"  %(\d+) = (\w+)(?:\[([^\]]*)\])?((?: [^:]+)?) : (\w+)\[([^\]]*)\] (\w+) (\w+)")
_SAVE = re.compile(r"  save (\S+) = %(\d+) omap=(\S*)")


#: As ``str(Fraction)`` writes it. ``Fraction`` itself takes "1e40000000", and computes it.
_FRACTION = re.compile(r"-?[0-9]+(?:/[0-9]+)?")
#: Far more than constants take (2**-1074 has 324 digits), and less than ``int`` refuses to read.
MAX_FRACTION_CHARACTERS = 4000


def _fraction(text: str) -> Fraction:
  if len(text) > MAX_FRACTION_CHARACTERS or _FRACTION.fullmatch(text) is None:
    raise ValueError(f"not a fraction of at most {MAX_FRACTION_CHARACTERS} characters: {text[:40]!r}")
  return Fraction(text)


def _split(text: str) -> tuple[str, ...]:
  return tuple(text.split(",")) if text else ()


def _parse_tensor(match: re.Match[str]) -> KTensor:
  name, dtype, axes, role, box, axis, below, ends, *seen, places = match.groups()
  windows = []
  for word in box.split(" ") if box else ():
    if (m := _WINDOW.fullmatch(word)) is None or not word:
      raise ValueError(f"not a dimension of memory: {word!r}")
    start, full, often = int(m[3] or 0), int(m[5]) if m[5] else None, int(m[2] or 1)
    windows.append(Window(_split(m[1]), start, full, m[4] or "", often))
  limit = (axis, ends, int(below == "<=")) if axis else None
  band = None
  if seen[0]:
    columns, rows, least, most, outside, sharp = seen
    band = Band(rows, columns, _end(least), _end(most), _fraction(outside), bool(sharp))
  return KTensor(name, DType(dtype), _split(axes), role, tuple(windows), limit, band, bool(places))


def _end(text: str) -> int | None:
  return int(text) if text else None


def _parse_op(match: re.Match[str]) -> BlockOp:
  _, op, bracket, operands, dtype, axes, phase, layout = match.groups()
  fields = dict(f.split("=") for f in operands.split() if "=" in f)
  words = [w for w in operands.split() if "=" not in w]
  args = tuple(int(w[1:]) for w in words if w.startswith("%"))
  tensor = next((w for w in words if not w.startswith("%")), "")
  reduced: tuple[str, ...] = ()
  value: Fraction | str | None = None
  if bracket is not None:
    if op in ("const", "powr"):
      value = _fraction(bracket) if bracket[0] in "-0123456789" else bracket
    else:
      reduced = _split(bracket)
  return BlockOp(
    op=op,
    args=args,
    axes=_split(axes),
    dtype=DType(dtype),
    phase=Phase(phase),
    layout=Layout(layout),
    tensor=tensor,
    value=value,
    reduced=reduced,
    imap=_read_names(fields.get("imap", "")),
    cmap=None if fields.get("cmap", "-") == "-" else fields["cmap"],
    fmap=None if fields.get("fmap", "-") == "-" else fields["fmap"],
  )


def parse_ugraph(text: str) -> UGraph:
  """The inverse of ``print_ugraph``.

  Raises:
      ValueError: a line is not of the grammar above; the message holds the line.
  """
  lines = text.splitlines()
  if not lines or lines[0] != f"ugraph {VERSION}":
    raise ValueError(f"not a ugraph of version {VERSION}: {lines[:1]}")
  tensors: list[KTensor] = []
  kernels: list[Kernel] = []
  head: tuple[str, str, str, str] | None = None
  ops: list[BlockOp] = []
  saves: list[Save] = []

  def close() -> None:
    if head is not None:
      name, grid, cluster, loop = head
      none = {"-": None}
      kernels.append(
        Kernel(
          name, _split(grid), none.get(cluster, cluster), none.get(loop, loop),
          tuple(ops), tuple(saves),
        )
      )  # fmt: skip

  for line in lines[1:]:
    if m := _TENSOR.fullmatch(line):
      tensors.append(_parse_tensor(m))
    elif m := _KERNEL.fullmatch(line):
      close()
      head, ops, saves = (m[1], m[2], m[3], m[4]), [], []
    elif (m := _OP.fullmatch(line)) and int(m[1]) == len(ops):
      ops.append(_parse_op(m))
    elif m := _SAVE.fullmatch(line):
      saves.append(Save(m[1], int(m[2]), _read_names(m[3])))
    else:
      raise ValueError(f"not a ugraph statement: {line!r}")
  close()
  return UGraph(tuple(tensors), tuple(kernels))
