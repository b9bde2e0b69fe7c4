"""The device headers by themselves: every function of ``ptx.cuh`` through the compiler."""

from dataclasses import replace

import pytest

from mirage_onnx.compiler.compile import compile_cubin
from mirage_onnx.errors import RejectionError
from mirage_onnx.target import H200
from tests.support.primitives import CASES, GROUPS
from tests.support.primitives.run import device_text


@pytest.mark.parametrize("arch", ["sm_90a", "sm_120a"])
@pytest.mark.parametrize("group", list(GROUPS))
def test_every_function_compiles(group, arch):
  cubin = compile_cubin(device_text(GROUPS[group]), replace(H200, arch=arch), name=group)
  assert cubin.stack_bytes == cubin.spill_bytes == 0


#: Needs nothing that is newer than the first chip with cp.async.
OLD = (
  "votes", "shfl", "loads", "stores", "ldmatrix_x4_trans", "movmatrix", "mma_16816_bf16",
  "mma_1688_tf32", "narrow", "named_barriers", "last_block_acq_rel", "message",
  "cp_async_groups", "cp_async_zfill",
)  # fmt: skip


def test_what_sm_80_has_compiles_for_it():
  old = replace(H200, arch="sm_80")
  compile_cubin(device_text([CASES[name] for name in OLD]), old, name="old")


@pytest.mark.parametrize(
  ("case", "feature"),
  [(CASES["stmatrix_x1"], "stmatrix"), (CASES["pdl"], "launch_dependents")],
  ids=str,
)
def test_what_it_lacks_is_refused_by_name(case, feature):
  old = replace(H200, arch="sm_80")
  with pytest.raises(RejectionError, match=f"'.*{feature}.*sm_90 or higher") as caught:
    compile_cubin(device_text([case]), old, name="old")
  assert caught.value.rejection.code == "COMPILE_FAILED"
