"""The golden µGraphs of the generator: right in the emulator, compiled for all architectures."""

import pytest
from golden_graphs import NAMES, golden_graph
from golden_runs import complaint, drawn

from mirage_onnx.codegen import compile_cubin
from mirage_onnx.errors import RejectionError
from mirage_onnx.target import H200
from mirage_onnx.targets import ARCHITECTURES, get_target


@pytest.mark.parametrize(
  "name",
  [pytest.param(n, marks=[pytest.mark.slow] if i % 4 else []) for i, n in enumerate(NAMES)],
)
def test_right_in_the_emulator(name):
  assert complaint(name, H200) == ""


#: One of each set of features: neither clusters nor dependent launches, only those, both without wgmma.
OTHERS = ("sm_80", "sm_120a", "sm_90")


@pytest.mark.parametrize("arch", OTHERS)
@pytest.mark.parametrize(
  "name",
  [pytest.param(n, marks=[pytest.mark.slow] if i % 7 else []) for i, n in enumerate(NAMES)],
)
def test_right_with_the_features_of_others(name, arch):
  assert complaint(name, get_target(arch)) == ""


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize(
  "name",
  [pytest.param(n, marks=[pytest.mark.slow] if i % 14 else []) for i, n in enumerate(NAMES)],
)
def test_compiles_for_every_architecture(name, arch):
  target = get_target(f"{arch}x64")
  for source in drawn(name, golden_graph(name), target)[2]:
    assert source.smem_bytes <= target.smem_bytes and source.pdl <= target.has_pdl
    assert source.cluster <= target.max_cluster and source.block <= 1024
    try:
      compile_cubin(source.text, target, name=source.name)
    except RejectionError as refused:  # random numbers are not the solver's
      assert refused.rejection.code == "SPILLS", refused
