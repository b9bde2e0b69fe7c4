"""What compute-sanitizer printed, kernel by kernel."""

import pytest
import sanitize
import sanitized_corpus
from emulated_gpu import EmulatedGpu

from mirage_onnx.emulator import EmulationError, compile_kernels

LOG = """========= COMPUTE-SANITIZER
@3
@3 ran
@5
========= Error: Race reported between Write access at s5_k0+0x1f0 in <unknown>:0
=========     and Read access at s5_k0+0x2a0 [64 hazards]
=========
========= Invalid __global__ read of size 4 bytes
=========     at s5_k1+0x80
=========
@5 ran
@6
========= Program hit CUDA_ERROR_INVALID_VALUE (error 1) on CUDA API call to cuGetProcAddress_v2.
=========
@6 failed: the CUDA driver says 700
@7
========= ERROR SUMMARY: 2 errors
"""


class Subject:
  name = "some/kernel"


FOUND = dict.fromkeys((3, 5, 6, 7, 8), (Subject, ("a text",), ()))


def test_reports_belong_to_the_kernel_that_they_name():
  rows = sanitize.rows_of(LOG, FOUND, [3, 5, 6, 7, 8], ended=True)
  assert {at: (r["reports"], r["failed"]) for at, r in rows.items()} == {
    3: (0, ""), 5: (2, ""), 6: (0, "the CUDA driver says 700"), 7: (0, "did not end"),
  }  # fmt: skip
  assert "s5_k0" in rows[5]["first"][0] and "Invalid" in rows[5]["first"][1]


def test_what_a_limit_ended_is_run_again():
  assert 7 not in sanitize.rows_of(LOG, FOUND, [7, 8], ended=False)


class Kept(EmulatedGpu):
  """Kernels compiled once for all numbers."""

  def __init__(self, sources):
    super().__init__()
    self.module = compile_kernels(sources)
    self.at = {s.name: i for i, s in enumerate(sources)}

  def launch_source(self, function, source, at):
    tensors = {a: self.arrays[at[a]] for a in source.args}
    self.module.run(tensors, [self.at[source.name]], sizes={a: at[a] for a in source.sizes})


#: Whose lanes share a row of one element: all read the old one, which one of them then writes. No other uses
#: what it has read, so it is a race that decides of nothing.
BY_ALL_LANES = ("decoders/normed, written in place.",)


@pytest.mark.slow
@pytest.mark.parametrize("name", sanitized_corpus.STEP_CASES)
def test_steps_stay_inside_whatever_a_run_says(name):
  """Lengths that are none: the emulator has the bounds of every tensor, to the byte."""
  count = 0
  for at, subject in enumerate(sanitized_corpus.decoders((name,))):
    sources = sanitize.emitted(at, subject)
    try:
      sanitize.launched(Kept(sources), subject, sources, sources, poisoned=True)
    except EmulationError as error:
      assert error.kind == "race" and subject.name.startswith(BY_ALL_LANES), (subject.name, error)
    count += 1
  assert count >= 5


def test_the_emulator_sees_what_is_read_outside():
  """So the test above can fail: one row less than the kernel was made for."""
  subject = next(iter(sanitized_corpus.decoders(("fp32",))))
  sources = sanitize.emitted(0, subject)

  class Shorter(Kept):
    def put(self, x):
      return super().put(x[: x.size // 2])

  with pytest.raises(EmulationError, match="out.of.bounds|outside"):
    sanitize.launched(Shorter(sources), subject, sources, sources, poisoned=True)
