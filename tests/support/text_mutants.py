"""Single mistakes in the text of a kernel: what the emulator must notice.

A row of ``KINDS`` is a pattern, and what may stand in its place. Every match in code (not in
comments) is one mutant. Texts stay compilable.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from mirage_onnx.codegen.source import KernelSource


@dataclass(frozen=True)
class Kind:
  """``replacements`` of a match; a statement that goes becomes ``;``."""

  name: str
  pattern: str
  replacements: Callable[[re.Match[str]], tuple[str, ...]]


@dataclass(frozen=True)
class Mutant:
  """``source`` differs from kernel ``origin`` on one line."""

  kind: str
  origin: str
  line: int
  before: str
  after: str
  source: KernelSource

  @property
  def change(self):
    return f"{self.kind} | {self.before} -> {self.after}"


def _gone(match):
  return (";",)


def _number(name, *steps):
  """The number in group ``n`` moved by each step, where it stays positive."""

  def move(match):
    text, value = match[0], int(match["n"])
    at, to = match.start("n") - match.start(), match.end("n") - match.start()
    return tuple(f"{text[:at]}{value + s}{text[to:]}" for s in steps if value + s > 0)

  return move


def _step(match):
  """Another step, where the walk takes more than one."""
  more = int(match["count"]) > int(match["n"])
  return _number("n", 1, -1)(match) if more else ()


def _other(*choices):
  return lambda match: tuple(c for c in choices if c != match[0])


KINDS = (
  # synchronisation taken away, one statement at a time
  Kind("block barrier gone", r"ptx::sync_block\(\);", _gone),
  Kind("warp barrier gone", r"ptx::sync_warp\(\);", _gone),
  Kind("cluster barrier gone", r"ptx::cluster_(sync|wait|arrive)\(\);", _gone),
  Kind("named barrier gone", r"ptx::bar_(sync|arrive)\([^;]*\);", _gone),
  Kind("copy wait gone", r"ptx::(cp_async_wait(_all)?|bulk_wait(_read)?)(<\d+>)?\(\);", _gone),
  Kind("copy waits for less", r"(cp_async_wait|bulk_wait)<(?P<n>\d+)>", _number("n", 1)),
  Kind("commit gone", r"ptx::(cp_async|bulk)_commit\(\);", _gone),
  Kind("mbarrier wait gone", r"ptx::wait\([^;]*\);", _gone),
  Kind("mbarrier arrive gone",
       r"ptx::(mbarrier_(arrive\w*|expect_tx)|cp_async_mbarrier_arrive)\([^;]*\);", _gone),
  Kind("warp arrives nowhere", r"(if \(step > 0\) )?warp_arrives<\d+>\([^;]*\);", _gone),
  Kind("a lane for its warp", r"ptx::mbarrier_arrive\((?P<to>free [^;]*)\);",
       lambda m: (f"for (int n = 0; n < 32; ++n) if (ptx::lane() == 0) ptx::mbarrier_arrive({m['to']});",)),
  Kind("another round", r"1u - round|(?<=, )round(?=\);)",
       lambda m: ("round" if "-" in m[0] else "1u - round",)),
  Kind("another place of the ring", r"(?<=\(full \+ |\(free \+ )slot", lambda m: ("(slot + 1) % 3",)),
  Kind("box", r"(?<=, )(step \* 64|first_a\d)(?=[,)])", lambda m: (f"{m[1]} + 8",)),
  Kind("own piece of a box", r"(?<= \+ )rank \* \d+(?=,)", lambda m: ("(1 - rank) * " + m[0].split()[-1],)),
  Kind("shared with none", r"full \+ slot, 3\)", lambda m: ("full + slot, 1)",)),
  Kind("mbarrier init gone", r"ptx::mbarrier_init\([^;]*\);", _gone),
  Kind("mbarrier count", r"mbarrier_init\([^;]*, (?P<n>\d+)\)", _number("n", 1, -1)),
  Kind("transaction bytes", r"expect_tx\([^;]*, (?P<n>\d+)\)", _number("n", 16, -16)),
  Kind("fence gone", r"ptx::fence_\w+\([^;]*\);", _gone),
  # products beside the threads
  Kind("product wait gone", r"ptx::wgmma_wait<\d+>\(\);", _gone),
  Kind("product waits for less", r"wgmma_wait<(?P<n>\d+)>", _number("n", 1)),
  Kind("product fence gone", r"ptx::wgmma_fence\(\);", _gone),
  Kind("product commit gone", r"ptx::wgmma_commit\(\);", _gone),
  Kind("product depth", r"\b[ab] \+ (?P<n>\d+)(?=[,)])", _number("n", 2, -2)),
  Kind("product dropped", r"^wgmma(<true>)?\([^;]*\);", _gone),
  Kind("depth across", r"\bwgmma(<true>)?(?=\()", lambda m: ("wgmma" if m[1] else "wgmma<true>",)),
  Kind("swizzle", r"swizzled<\d+, (?P<n>\d+)>",
       lambda m: (f"([](int r, int k) {{ return r * {m['n']} + k; }})",)),
  Kind("another row of a tile", r"(?<=wgmma_tile\()s\w+", lambda m: (f"{m[0]} + 512",)),
  Kind("another stage", r"(?<= \+ )step(?= % \d)", lambda m: ("(step + 1)",)),
  Kind("copies ahead", r"ahead = step \+ (?P<n>\d+)", _number("n", 1, -1)),
  # iterations that are left out, products that are
  Kind("vote gone", r"ptx::sync_any\(low\)|any_said<\d+>\(asked, said\)", lambda m: ("false",)),
  Kind("floor", r">= -\d+\.0f\)", lambda m: (">= -1e9f)",)),
  Kind("seen", r"const int (?P<what>seen|sees) = .*;",
       lambda m: (m[0].replace(";", " - 1;" if m["what"] == "seen" else " + 64;"),)),
  Kind("turn", r"(?<=first = )to(?=;)|(?<=steps = )all(?=;)|(?<=\) turns = )\d(?=;)",
       lambda m: ({"to": "to + 1", "all": "all - 1"}.get(m[0], "1"),)),
  Kind("grid wait gone", r"ptx::grid_wait\(\);", _gone),
  Kind("release gone", r"AcqRel", _other("Relaxed")),
  # who does what
  Kind("lane off by one", r"ptx::(lane|thread)\(\)", lambda m: (f"({m[0]} + 1)",)),
  Kind("warp off by one", r"ptx::warp\(\)", lambda m: (f"({m[0]} + 1)",)),
  Kind("block off by one", r"ptx::block_[xyz]\(\)", lambda m: (f"({m[0]} + 1)",)),
  Kind("rank off by one", r"ptx::cluster_rank\(\)", lambda m: (f"({m[0]} + 1)",)),
  Kind("nobody writes", r"if \((ptx::\w+\(\)|t) == 0\)", lambda m: (f"if ({m[1]} == 4096)",)),
  Kind("everybody writes", r"if \((ptx::\w+\(\)|t) == 0\)", lambda m: ("if (true)",)),
  # tails
  Kind("mask dropped", r"if \((a\d+|at) < \d+\)", lambda m: ("if (true)",)),
  Kind("mask off by one", r"if \(a\d+ < (?P<n>\d+)\)", _number("n", 1, -1)),
  Kind("mask off by a vector", r"if \(at < (?P<n>\d+)\)", _number("n", 8, -8)),
  Kind("load mask dropped", r"(?<=, )(k \+ kRound[^,;]* < k_end|more)(?=\);)",
       lambda m: ("true",)),
  Kind("clamp off by one", r"at_most\([^()]*, (?P<n>\d+)\)", _number("n", 1)),
  Kind("depth end", r"k_end = (at_most\(k_begin \+ )?(?P<n>\d+)", _number("n", 8, -8)),
  # addresses and extents of tiles
  Kind("stride", r"(?<!\b0 )(?<!\(0\) )\* (?P<n>\d+)(?= \+|;|\)|,)", _number("n", 1, -1)),
  Kind("overlap in shared memory", r"smem \+ \d+", lambda m: ("smem",)),
  Kind("place in a tile", r"% (?P<n>\d+)", _number("n", 1, -1)),
  Kind("walk", r"e < (?P<n>\d+)", _number("n", -1)),
  Kind("walk step", r"e < (?P<count>\d+); e \+= (?P<n>\d+)", _step),
  # the loop and its stages
  Kind("stages", r"kRound = (?P<n>\d+)", _number("n", 1, -1)),
  Kind("stage stride", r"kStride = (?P<n>\d+)", _number("n", 1, -1)),
  Kind("stage", r"s < (?P<n>\d+)", _number("n", -1)),
  Kind("rounds", r"round < (?P<n>\d+)", _number("n", -1)),
  Kind("unrolled extent", r"\b[jinhq] < (?P<n>\d+)", _number("n", -1)),
  # what is accumulated and combined
  Kind("wrong operand", r"\b(?:x|acc|part|tile|all)\d+\b(?=\[)", lambda m: ()),
  Kind("fewer parts", r"parts_reduce<\w+, (?P<n>\d+)", _number("n", -1, 1)),
  Kind("part pitch", r"(parts_reduce<\w+, \d+, |store_accumulator<)(?P<n>\d+)",
       _number("n", 1, -1)),
  Kind("ranks", r"cluster_reduce<\w+, (?P<n>\d+)", _number("n", -1, 1)),
  Kind("another reduction", r"(?<=reduce<)(Sum|Max)", _other("Sum", "Max")),
  Kind("lanes not combined", r"quad_reduce<\w+>|warp_reduce<\w+>", lambda m: ("",)),
  Kind("neutral element", r"(Sum|Max)::neutral\(\)", _other("Sum::neutral()", "Max::neutral()")),
  Kind("sum dropped", r"^(v\d+) \+= ", lambda m: (f"{m[1]} = ",)),
  Kind("sign", r"(?<=v\d) \+ (?=v\d)", lambda m: (" - ",)),
)  # fmt: skip


def _wrong_operands(text, match):
  """Another value of the same letter that the kernel has, subscripted as often."""
  letter = re.match(r"[a-z]+", match[0])
  assert letter
  depth = _subscripts(text, match.end())
  others = {
    m[0]
    for m in re.finditer(rf"\b{letter[0]}\d+\b(?=\[)", text)
    if m[0] != match[0] and _subscripts(text, m.end()) == depth
  }
  return tuple(sorted(others))[:1]


def _subscripts(text, at):
  found = re.match(r"(?:\[[^\]]*\])+", text[at:])
  return found[0].count("[") if found else 0


def mutants(kernel):
  lines = kernel.text.split("\n")
  body = next(i for i, line in enumerate(lines) if "PTX_KERNEL" in line or "_KERNEL(" in line)
  for number in range(body, len(lines)):
    indented, mark, comment = lines[number].partition("//")
    code = indented.lstrip()
    if "PTX_" in code:
      continue
    for kind in KINDS:
      for match in re.finditer(kind.pattern, code):
        declared = re.match(r"(const |constexpr )?[A-Za-z<>0-9]+\*? \w+\[", code)
        if kind.name == "wrong operand":
          if declared:
            continue
          texts = _wrong_operands(code + kernel.text, match)
        else:
          texts = kind.replacements(match)
        for text in texts:
          changed = code[: match.start()] + text + code[match.end() :]
          new = [*lines[:number], changed + mark + comment, *lines[number + 1 :]]
          source = replace(kernel, text="\n".join(new))
          yield Mutant(kind.name, kernel.name, number + 1, code.strip(), changed.strip(), source)
