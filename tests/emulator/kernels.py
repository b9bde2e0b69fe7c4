"""What the tests of the emulator share: small kernels and random arrays."""

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from golden_texts import texts_of

from mirage_onnx.codegen.source import KernelSource
from mirage_onnx.emulator import KINDS, EmulationError

#: What the kernels of the test files do, by name: ``emulator/NAME`` of the packed texts.
TEXTS = texts_of("emulator")
HEADER = '#include "ptx.cuh"\n'

#: Runs kernels of the test file by name, one after the other, on the tensors given by name.
Run = Callable[..., None]


def kernel(name, text, args, *, grid=(1, 1, 1), block=32, cluster=1, smem=0, pdl=False):
  return KernelSource(name, HEADER + text, grid, block, cluster, smem, tuple(args.split()), pdl)


def body(name, text=None, *, parameters="const float* x, float* y", **launch):
  """A kernel by its body, one of ``TEXTS``; its arguments are the names of its parameters."""
  text = text or TEXTS[name]
  block, cluster = launch.get("block", 32), launch.get("cluster", 1)
  macro = f"PTX_CLUSTER_KERNEL({block}, {cluster})" if cluster > 1 else f"PTX_KERNEL({block})"
  args = " ".join(re.findall(r"(\w+)(?:,|$)", parameters))
  return kernel(name, f"{macro} {name}({parameters}) {{\n{text}\n}}", args, **launch)


@dataclass(frozen=True)
class Wrong:
  """A kernel that must fail, with the kind of the error and what its message says.

  The line at fault ends in ``// here``. Of a race either access may come second: the message
  names that of ``// here`` and that of ``// there``, if there is one.
  """

  source: KernelSource
  kind: str
  message: str

  def line(self, mark):
    lines = self.source.text.splitlines()
    return next((i for i, t in enumerate(lines, 1) if t.endswith(f"// {mark}")), None)


def wrong(kind, name, message="", *, text=None, **launch):
  assert kind in KINDS
  return Wrong(body(name, text, **launch), kind, message)


def assert_wrong(run, cases, name, **tensors):
  case = next(c for c in cases if c.source.name == name)
  with pytest.raises(EmulationError) as caught:
    run(name, **{n: tensors[n] for n in case.source.args})
  error = caught.value
  assert error.kind == case.kind, error
  assert re.search(case.message, str(error)), error
  assert error.kernel == name
  here, there = case.line("here"), case.line("there")
  if here and not there:
    assert error.line == here, error
  elif here:
    named = sorted({int(n) for n in re.findall(r"line (\d+) ", str(error))})
    assert error.line in named and named == sorted({here, there}), error
  return error


def normal(*shape, seed=0):
  return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


POISONED = kernel(
  "poisoned",
  """
    PTX_KERNEL(32) poisoned(float* y) {
      float* s = ptx::smem<float>();
      ptx::st_f32(y + ptx::block_x() * 32 + ptx::lane(), s[ptx::lane()]);
      s[ptx::lane()] = 1.0f;
    }""",
  "y",
  grid=(2, 1, 1),
  smem=128,
)

# Two consecutive kernels of one sequence: the second reads what the first wrote.
FIRST_OF_TWO = kernel(
  "first_of_two",
  """
    PTX_DEVICE float change(float v) { return v * 2; }
    PTX_KERNEL(32) first_of_two(const float* x, float* t) {
      ptx::st_f32(t + ptx::lane(), change(ptx::ld_nc_f32(x + ptx::lane())));
    }""",
  "x t",
)
