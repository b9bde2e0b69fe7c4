"""What compute-sanitizer printed, kernel by kernel."""

import sanitize

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
