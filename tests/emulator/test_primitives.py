"""Every function of ``ptx.cuh`` in the emulator against what the PTX document says.

The same cases run on the GPU, where ``tests/gpu/test_primitives.py`` compares the two bit for bit.
"""

import functools
import re

import pytest

from mirage_onnx.target import H100
from tests.codegen.tiled.test_feed_text import FED
from tests.codegen.tiled.test_ring_feed_text import CASES as RING_FED
from tests.codegen.tiled.test_warpgroup import emit
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


#: What only blocks of several roles can show: kernels of these cases run here and on the GPU
#: (tests/gpu/test_warpgroups.py). ``mbarrier_arrive_remote_relaxed`` is in ``warp_arrives``.
IN_KERNELS = {
  "tensor_load": FED, "tensor_prefetch": FED, "tensor_load_multicast": FED, "warpgroup": FED,
  "mbarrier_arrive_remote_relaxed": FED, "agreed": RING_FED,
}  # fmt: skip


@pytest.mark.parametrize("name", IN_KERNELS)
def test_what_blocks_of_several_roles_call(name):
  """Some kernel of those that run calls it."""
  texts = [emit(case, H100).text for case in IN_KERNELS[name].values()]
  called = "warp_arrives<2>" if name == "mbarrier_arrive_remote_relaxed" else f"ptx::{name}("
  assert any(called in text for text in texts)


def test_every_function_has_a_case():
  covered = {f for case in CASES.values() for f in case.covers} | set(IN_KERNELS)
  declared = {re.search(r"(\w+)\(", head)[1] for head in functions(DEVICE)}
  assert declared - covered == set()
  assert covered - declared == set()


def test_a_case_calls_what_it_covers():
  for case in CASES.values():
    text = "".join(k.text for k in case.kernels)
    missing = [f for f in case.covers if not re.search(rf"ptx::{f}\b", text)]
    assert not missing, case.name
