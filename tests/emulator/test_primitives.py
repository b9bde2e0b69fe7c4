"""Every function of ``ptx.cuh`` in the emulator against what the PTX document says.

The same cases run on the GPU, where ``tests/gpu/test_primitives.py`` compares the two bit for bit.
"""

import functools
import re

import pytest

from tests.emulator.test_headers import DEVICE, functions
from tests.support.primitives import CASES, GROUPS
from tests.support.primitives.case import differences
from tests.support.primitives.run import compile_for_host, emulate


@functools.cache
def module_of(group):
  return compile_for_host(GROUPS[group])


@pytest.mark.parametrize("order", ["ascending", "descending"])
@pytest.mark.parametrize(("group", "name"), [(g, c.name) for g, cases in GROUPS.items() for c in cases])
def test_primitive(group, name, order):
  case = CASES[name]
  found = emulate(module_of(group), case, order)
  assert not differences(case, found, case.reference(case.inputs()))


def test_every_function_has_a_case():
  covered = {f for case in CASES.values() for f in case.covers}
  declared = {re.search(r"(\w+)\(", head)[1] for head in functions(DEVICE)}
  assert declared - covered == set()
  assert covered - declared == set()


def test_a_case_calls_what_it_covers():
  for case in CASES.values():
    text = "".join(k.text for k in case.kernels)
    missing = [f for f in case.covers if not re.search(rf"ptx::{f}\b", text)]
    assert not missing, case.name
