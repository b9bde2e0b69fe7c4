"""Machine code against PTX: what is compiled now is right, and what ptxas got wrong once is refused."""

import re
import struct

import numpy as np
import pytest
from banded import banded, banded_text

from mirage_onnx.codegen.source import KernelSource
from mirage_onnx.compiler import compile as compiler
from mirage_onnx.compiler.compile import compile_cubin
from mirage_onnx.compiler.machine.check import miscompiled
from mirage_onnx.compiler.machine.code import machine_steps
from mirage_onnx.compiler.machine.ptx import ptx_steps
from mirage_onnx.compiler.machine.steps import MachineFlow
from mirage_onnx.emulator import compile_kernels
from mirage_onnx.errors import RejectionError
from mirage_onnx.target import H200
from tests.codegen.tiled.test_warpgroup import COMPILED, RUN, attention, emit

KEPT = {
  "queries in registers": attention(64, 64, 2, a1=200, a3=77),
  "a step later": attention(64, 64, 3, a1=256, a3=128),
  "band": banded(banded_text("..0 else 0"), 64, 64, 2, a1=264, a3=200),
  **{n: RUN[n] for n in ("norm", "across", "gated", "one step", "shared depth")},
  "many tiles": COMPILED["128x128"],
}


def compiled(text):
  """Image, report, PTX."""
  return compiler._nvrtc(text, H200, "k0")


def with_a_vote(text):
  """The change of c68bf00 that was wrong on an H100, right in the emulator: factors of 1 are voted away."""
  scaled = text.index("v21[0][i][j][e] = v21[0][i][j][e] * v10[0][i];")
  begin = text.rindex("\n    #pragma unroll\n    for (int i", 0, scaled) + 1
  end = text.index("\n    }\n", scaled) + 7
  vote = "    if (!ptx::all(v10[0][0] == 1.0f && v10[0][1] == 1.0f)) {\n"
  return f"{text[:begin]}{vote}{text[begin:end]}    }}\n{text[end:]}"


@pytest.mark.parametrize("name", KEPT)
def test_what_is_compiled_keeps_its_operands(name):
  image, _, ptx = compiled(emit(KEPT[name], H200).text)
  assert "wgmma.mma_async" in ptx and miscompiled(ptx, image, "k0") is None
  products = [
    [s.product.columns for s in f if s.product] for f in (ptx_steps(ptx, "k0"), machine_steps(image, "k0"))
  ]
  assert products[0] == products[1] != []


def test_a_branch_between_two_products():
  """Right as text, so the emulator takes it; ptxas before 13.1 overwrites the queries."""
  source = emit(KEPT["queries in registers"], H200)
  text = with_a_vote(source.text)
  rng = np.random.default_rng(5)
  k, q, v = (rng.standard_normal((2, n, 64)).astype(np.float16) for n in (200, 77, 200))
  got = []
  for t in (source.text, text):
    y = np.full((2, 77, 64), np.nan, np.float16)
    changed = KernelSource(**{n: getattr(source, n) for n in source.__slots__} | {"text": t})
    compile_kernels([changed]).run({"i0": k, "i1": q, "i2": v, "o0": y})
    got.append(y)
  assert (got[0] == got[1]).all()

  image, log, ptx = compiled(text)
  if " 0 bytes spill stores" not in log:
    pytest.fail("it spills")
  from cuda.bindings import nvrtc

  if nvrtc.nvrtcVersion()[1:] < (13, 1):
    assert re.search("operand A of wgmma 0 do not keep", miscompiled(ptx, image, "k0"))
    with pytest.raises(RejectionError, match="wgmma 0") as info:
      compile_cubin(text, H200, name="k0")
    assert info.value.rejection.code == "MISCOMPILED"
  else:
    assert miscompiled(ptx, image, "k0") is None


def place_of_code(image):
  """Where the kernel's instructions begin."""
  names = struct.unpack_from("<H", image, 62)[0]
  (table,) = struct.unpack_from("<Q", image, 40)
  sections = [
    struct.unpack_from("<II8x8xQQ", image, table + 64 * i)
    for i in range(struct.unpack_from("<H", image, 60)[0])
  ]
  strings = sections[names][2]
  return next(o for at, _, o, _ in sections if image[strings + at :].startswith(b".text.k0\0"))


def changed(image, at, clear, put, half=0):
  """With bits of half an instruction changed."""
  place = place_of_code(image) + 16 * at + 8 * half
  (old,) = struct.unpack_from("<Q", image, place)
  new = old & ~clear | put
  assert new != old
  return image[:place] + struct.pack("<Q", new) + image[place + 8 :]


@pytest.fixture(scope="module", params=["queries in registers", "a step later"])
def made(request):
  image, _, ptx = compiled(emit(KEPT[request.param], H200).text)
  steps = machine_steps(image, "k0")
  products = [n for n, s in enumerate(steps) if s.product]
  return image, ptx, steps, products


def test_every_result_put_where_queries_are_is_seen(made):
  """An instruction of the loop behind the first product writes one of the queries' registers."""
  image, ptx, steps, products = made
  queries = steps[products[0]].product.a
  flow = MachineFlow(steps)
  inner = flow.loops_of(products[0])[0]
  ways = [
    n
    for n in range(products[0], flow.blocks[max(inner.blocks)][1])
    if len(steps[n].writes) == 1 and not (steps[n].may or steps[n].plain or steps[n].source)
  ]
  missed = []
  for n, at in enumerate(ways[::9]):
    mutant = changed(image, at, 0xFF << 16, int(queries[n % 4][1:]) << 16)
    missed += [at] if miscompiled(ptx, mutant, "k0") is None else []
  assert len(ways) > 150 and not missed


def test_operands_of_another_product_are_seen(made):
  image, ptx, steps, products = made
  caught = 0
  for one in products:
    for other in products:
      mine, its = steps[one].product.a, steps[other].product.a
      if mine != its and (steps[one].product.sums != steps[other].product.sums):
        mutant = changed(image, one, 0xFF << 24, int(its[0][1:]) << 24)
        caught += 1
        if (one < products[4]) != (other < products[4]):
          assert miscompiled(ptx, mutant, "k0"), (one, other)
  assert caught >= 16


def test_groups_that_nothing_ends_are_seen(made):
  """Products without their commit, or waited for one group too late: registers change under way."""
  image, ptx, steps, _ = made
  ends = [n for n, s in enumerate(steps) if s.ends is not None]
  commits = [n for n, s in enumerate(steps) if s.commits]
  mutants = [changed(image, n, 0, 7 << 20, half=1) for n in commits]
  mutants += [changed(image, n, 0, 7 << 8, half=1) for n in ends]
  found = [miscompiled(ptx, m, "k0") for m in mutants]
  assert len(found) >= 4
  assert all(found)
  assert any("before the wgmma" in f for f in found)


def test_another_number_of_products():
  image, _, ptx = compiled(emit(KEPT["one step"], H200).text)
  twice = ptx.replace(
    "wgmma.wait_group",
    "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%f1}, %rd1, %rd2;\nwgmma.wait_group",
    1,
  )
  assert "became" in miscompiled(twice, image, "k0")
  assert "no code" in miscompiled(ptx, image[:2000], "k0")
