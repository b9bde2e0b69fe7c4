"""Within its bound the search finds every program: its set is that of a brute-force enumeration.

Brute force (``tests/support/brute_force.py``) makes every value there is and looks which equal the
target. ``program_rules.py`` says which programs the search leaves out on purpose; they are counted.
"""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from brute_force import Enumeration, sizes_by_level
from canonical_size import Sizes
from completeness import brute_force, setting_of
from completeness_cases import CASES
from program_rules import left_out
from searched_programs import search_programs

from mirage_onnx.superopt.roles import KernelRoles

#: Holes of the search, each with its reason; a repaired one fails here until its line goes.
HOLES = {}
FAST = ("scaled", "two")
#: Programs of the search at least, so that equal sets say something.
AT_LEAST = {"scaled": 6, "two": 1, "norm": 9, "soft": 6, "online": 1}


def _param(case):
  marks = [] if case.name in FAST else [pytest.mark.slow]
  if case.name in HOLES:
    marks.append(pytest.mark.xfail(reason=HOLES[case.name]))
  return pytest.param(case, id=case.name, marks=marks)


@pytest.mark.parametrize("case", [_param(c) for c in CASES])
def test_the_search_finds_every_program(case):
  programs, found = brute_force(case, np.random.default_rng(0))
  rules = {text: left_out(kernel) for text, kernel in programs.items()}
  wanted = {text for text, rule in rules.items() if rule is None}
  searched, pruned = search_programs(case.region, KernelRoles(case.loop, case.grid), case.size)
  excluded = dict(Counter(filter(None, rules.values())))
  print(
    f"{case.name}: size {case.size}, {case.ops}; values by size {sizes_by_level(found)}; "
    f"{len(programs)} verified programs, left out {excluded}; "
    f"{len(wanted)} wanted, {len(searched)} searched; pruned {dict(pruned)}"
  )
  assert searched.keys() <= programs.keys(), "brute force lacks a program of the search"
  assert not {rules[text] for text in searched} - {None}, "a rule leaves out what the search finds"
  assert wanted <= searched.keys(), "\n".join(sorted(wanted - searched.keys()))
  assert len(searched) >= AT_LEAST[case.name]


def _straight_lines(setting, length):
  """What straight-line programs of so many operations compute, each operation on any values."""
  seen = set()
  shared = Enumeration(setting)
  shared.run(0)
  loads = shared.levels[0]
  sizes = Sizes()

  def grow(program, left):
    for v in program.levels[0]:
      if len(sizes.units(v.term, shared.heavies)) <= length:
        seen.add((v.term, v.phase))
    if not left:
      return
    known = list(program.levels[0])
    for i, u in enumerate(known):
      steps = [(op, (u,)) for op in program._unary(u)]
      for v in known[i:]:
        if v.phase is u.phase:
          steps += program._binary(u, v)
      for op, args in steps:
        more = Enumeration(setting, heavies=shared.heavies)
        more.levels = [list(known)]
        more.seen = {(v.term, v.phase): v for v in known}
        more.sizes = _NoSizes()
        if more._keep(more._numbers(op, args), op, args, 0) is not None:
          grow(more, left - 1)

  start = Enumeration(setting, heavies=shared.heavies)
  start.levels = [list(loads)]
  grow(start, length)
  return seen


class _NoSizes(Sizes):
  def units(self, x, known):
    return frozenset()


@pytest.mark.parametrize("name", ["two", "norm", "online"])
def test_levels_are_what_straight_line_programs_compute(name):
  """All programs of three operations, one operation after the other, without any levels."""
  case = next(c for c in CASES if c.name == name)
  setting, _ = setting_of(case, np.random.default_rng(1))
  # exp-sub is no operation of a straight-line program.
  ops = frozenset("exp" if o == "exp-sub" else o for o in setting.ops)
  setting = replace(setting, loads=setting.loads[:2], ops=ops)
  levels = Enumeration(setting)
  levels.run(3)
  enumerated = {(v.term, v.phase) for level in levels.levels for v in level}
  assert _straight_lines(setting, 3) == enumerated
  assert len(enumerated) > 30
