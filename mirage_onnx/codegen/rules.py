"""The rules of generated text, checked on every kernel that is emitted.

They are what the CPU emulator needs to run the text of the GPU (docs/emulator.md), and what keeps
a kernel free of hangs: one text for both sides, barriers that every thread reaches, nothing that
waits for a block that may not be running.

Convergence is a small data-flow analysis: every variable has the *spread* of what it was computed
from (how widely its value is shared), every block that of its condition, and a collective may only
stand where every thread that it needs comes along.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from mirage_onnx.instructions import INSTRUCTIONS


class Spread(IntEnum):
  """Whose threads surely agree on a value; a larger one is shared less widely."""

  CLUSTER = 0
  BLOCK = 1
  WARPGROUP = 2
  WARP = 3
  THREAD = 4


@dataclass(frozen=True, slots=True)
class Violation:
  """A broken rule; ``line`` counts from 1 in the kernel's text."""

  rule: str
  line: int
  text: str

  def __str__(self) -> str:
    return f"line {self.line} `{self.text}`: {self.rule}"


_FORBIDDEN: tuple[tuple[str, str], ...] = (
  # pattern, rule
  (r"\basm\b", "PTX is written in the ptx headers only"),
  (r"\b(static|extern|__shared__|__constant__|__device__|__global__|__managed__)\b",
   "shared memory is one dynamic block, ptx::smem<T>(); there are no device variables"),
  (r"\b(threadIdx|blockIdx|blockDim|gridDim|warpSize)\b", "indices come from ptx accessors"),
  (r"\b__\w+\(", "builtins are wrapped in the ptx headers"),
  (r"\b(while|do|goto)\b", "only ptx::wait and ptx::wait_cluster spin"),
  (r"\breturn\b", "no thread leaves early: the others may meet it at a barrier"),
  (r"\b(volatile|atomic\w*|printf|malloc|new|delete|assert|clock\w*)\b",
   "no allocation, output, clock or hidden atomic"),
  (r"#\s*(?!include|pragma)\w+", "the text does not depend on macros"),
)  # fmt: skip

#: What reads a place in the launch, and who agrees on it.
_PLACES = {
  "block_x": Spread.BLOCK, "block_y": Spread.BLOCK, "block_z": Spread.BLOCK,
  "cluster_rank": Spread.BLOCK, "warpgroup": Spread.WARPGROUP, "warp": Spread.WARP, "lane": Spread.THREAD,
  "thread": Spread.THREAD,
}  # fmt: skip

#: A collective -> the widest disagreement that a condition around it may have.
COLLECTIVES: dict[str, Spread] = {
  **dict.fromkeys(("cluster_arrive", "cluster_wait", "cluster_sync"), Spread.CLUSTER),
  **dict.fromkeys(("sync_block", "sync_any"), Spread.BLOCK),
  **dict.fromkeys(
    ("wgmma", "wgmma_fence", "wgmma_commit", "wgmma_wait", "registers_give", "registers_take"),
    Spread.WARPGROUP,
  ),
  **dict.fromkeys(
    ("sync_warp", "shfl", "shfl_xor", "shfl_up", "shfl_down", "ballot", "any", "all",
     "mma_step", "warp_reduce", "quad_reduce", "movmatrix", "bar_sync",
     "bar_arrive", "quad_turned", "warp_arrives", "warp_says", "agreed"),
    Spread.WARP,
  ),
  **{f: Spread.WARP for i in INSTRUCTIONS.values() if i.warps == 1 for f in (i.function, i.in_rows) if f},
}  # fmt: skip
_WARP_FAMILIES = re.compile(r"(mma_\d+|ldmatrix|stmatrix)")

_CALL = re.compile(r"\b(\w+)\s*(?:<[^<>;]*(?:<[^<>;]*>)?[^<>;]*>)?\s*\(")
_DECLARED = re.compile(
  r"^(?:constexpr |const )*(?:unsigned |long )*"
  r"(int|bool|unsigned|float|double|[A-Z]\w*(?:<\w+>)?)\*?\s+(\w+)(?:\[[^\]]*\])*"
  r"\s*(?:=\s*(.*))?;"
)
_COUNTER = re.compile(r"^for \(int (\w+) = ")


def broken_rules(text: str) -> tuple[Violation, ...]:
  """Every rule that the text of a kernel breaks, in the order of its lines."""
  return tuple(_violations(text))


def _violations(text: str) -> Iterator[Violation]:
  spreads: dict[str, Spread] = {}
  blocks: list[tuple[Spread, bool]] = []  # spread of the condition, is a loop
  before = Spread.CLUSTER  # of the last condition: that of an else without braces
  for number, raw in enumerate(text.splitlines(), 1):
    line = re.sub(r"//.*", "", raw).strip()
    if not line:
      continue
    code = re.sub(r'"[^"]*"', "", line)
    for pattern, rule in _FORBIDDEN:
      if re.search(pattern, code):
        yield Violation(rule, number, line)
    if re.match(r"(if|for) \(.*\)$|(\} )?else$", line):
      yield Violation("a condition and what it is for stand on one line", number, line)
    around = max((s for s, _ in blocks), default=Spread.CLUSTER)
    looping = any(loop for _, loop in blocks)
    head, body, condition, is_loop = _parted(line)
    if counter := _COUNTER.match(head):
      spreads.pop(counter[1], None)  # an earlier loop may have had the name
    own = before if line.startswith("else ") else _spread(condition, spreads)
    before = own if head.startswith("if (") else before
    if counter:
      spreads[counter[1]] = max(own, around)
    inner = max(around, own)
    yield from _misplaced(body or ("" if condition else line), inner, number, line)
    if (looping or is_loop) and "ld_acquire" in line:
      yield Violation("only ptx::wait and ptx::wait_cluster spin", number, line)
    if match := _DECLARED.match(line):
      floating = match[1] not in ("int", "bool", "unsigned")
      spreads[match[2]] = Spread.THREAD if floating else _spread(match[3] or "", spreads)
    for _ in range(line.count("}") - line.count("{")):
      blocks.pop()
    if line.endswith("{") and not line.startswith("}"):
      blocks.append((own, is_loop))


def _parted(line: str) -> tuple[str, str, str, bool]:
  """(head, statement after it on the same line, condition, whether it is a loop)."""
  for kind in ("for", "if"):
    if not line.startswith(f"{kind} ("):
      continue
    depth = 0
    for at, c in enumerate(line):
      depth += (c == "(") - (c == ")")
      if c == ")" and depth == 0:
        head, rest = line[: at + 1], line[at + 1 :].strip()
        # How often a loop runs is in its first two parts; the third only steps.
        inside = ";".join(head[head.index("(") + 1 : -1].split(";")[:2])
        return head, rest.rstrip("{").strip(), inside, kind == "for"
  return line, "", "", False


def _spread(expression: str, spreads: dict[str, Spread]) -> Spread:
  """Who agrees on the value of an expression; what was loaded from memory, nobody."""
  if re.fullmatch(r"ptx::sync_any\(\w+\)|any_said<\d+>\(\w+, \w+\)", expression):
    return Spread.BLOCK
  if re.fullmatch(r"ptx::any\(\w+\)", expression):
    return Spread.WARP
  found = [spreads.get(name, Spread.CLUSTER) for name in re.findall(r"[A-Za-z_]\w*", expression)]
  found += [s for name, s in _PLACES.items() if f"ptx::{name}()" in expression]
  if re.search(r"\bload\w*<|ptx::(ld|dsmem_ld|shfl)", expression):
    found.append(Spread.THREAD)
  return max(found, default=Spread.CLUSTER)


def _misplaced(statement: str, around: Spread, number: int, line: str) -> Iterator[Violation]:
  for name in _CALL.findall(statement):
    needs = COLLECTIVES.get(name)
    if needs is None and _WARP_FAMILIES.match(name):
      needs = Spread.WARP
    if needs is None:
      continue
    if around > needs or re.search(r"\?|&&|\|\|", statement):
      rule = f"{name} needs every thread of the {needs.name.lower()}, but stands under a condition"
      yield Violation(rule, number, line)
