"""Attention whose mask is a constant that hides all but a band, as a block graph."""

import re

from tiled_kernels import ATTENTION, Case

from mirage_onnx.ir import KernelParams

#: What is made of the mask %m and the scores %2, in place of %2; %N: the next values.
SELECTED = """  %26 = const[{low}] : f32[] loop uniform
  %27 = cast %25 : f32[a1,a3] loop C_frag
  %28 = select %27 %2 %26 : f32[a0,a1,a3] loop C_frag
"""
#: As exporters of torch write it.
CHOSEN = """  %26 = const[{low}] : f32[] loop uniform
  %27 = const[0] : f32[] loop uniform
  %28 = cast %25 : f32[a1,a3] loop C_frag
  %29 = select %28 %27 %26 : f32[a1,a3] loop C_frag
  %30 = add %29 %2 : f32[a0,a1,a3] loop C_frag
"""
ADDED = """  %26 = cast %25 : f32[a1,a3] loop C_frag
  %27 = add %26 %2 : f32[a0,a1,a3] loop C_frag
"""
#: Truth values of keys that are there, besides: of a run.
THERE = """  %26 = load i4 imap=-,a0 cmap=a1 fmap=a1 : bool[a0,a1] loop column
  %27 = mul %25 %26 : bool[a0,a1,a3] loop C_frag
  %28 = const[{low}] : f32[] loop uniform
  %29 = const[0] : f32[] loop uniform
  %30 = cast %27 : f32[a0,a1,a3] loop C_frag
  %31 = select %30 %29 %28 : f32[a0,a1,a3] loop C_frag
  %32 = add %31 %2 : f32[a0,a1,a3] loop C_frag
"""


def banded_text(band, how=CHOSEN, low="-65504", kind="bool"):
  """``ATTENTION``, of which %3 and %5 see masked scores; ``band``: as the text of a tensor has it."""
  head, _, rest = ATTENTION.partition("  %3 = ")
  mask = f"  %25 = load i3 imap=a3,- cmap=a1 fmap=a1 : {kind}[a3,a1] loop C_frag"
  lines = [mask, *how.format(low=low).splitlines()]
  first = 3
  names = {25 + n: first + n for n in range(len(lines))}
  moved = {n: n + len(lines) for n in range(3, 26)}

  def renamed(line, table):
    return re.sub(r"%(\d+)", lambda m: f"%{table.get(int(m[1]), int(m[1]))}", line)

  own = [renamed(line, names) for line in lines]
  scores = first + len(lines) - 1
  later = renamed("  %3 = " + rest, {2: scores, **moved})
  more = f"tensor i3 {kind}[a3,a1] weight seen a1:a3 {band}\n"
  more += "tensor i4 bool[a0,a1] input\n" if how is THERE else ""
  return head.replace("tensor o0", f"{more}tensor o0") + "\n".join(own) + "\n" + later


def banded(text, rows, loop_tile, stages, instruction="wgmma", **extents):
  sizes = {"a0": 2, "a2": 64, "a4": 64, **extents}
  return Case(text, (KernelParams((rows, 1), 1, loop_tile, rows // 16, stages, instruction),), sizes)
