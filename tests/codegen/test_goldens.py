"""The golden µGraphs of the generator: right in the emulator, compiled for all architectures."""

import pytest
from golden_graphs import NAMES, golden_graph
from golden_runs import complaint, drawn, has_registers

from mirage_onnx.compiler import compile_cubin
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
  _, _, sources = drawn(name, golden_graph(name), target, has_registers)
  assert sources
  for source in sources:
    assert source.smem_bytes <= target.smem_bytes and source.pdl <= target.has_pdl
    assert source.cluster <= target.max_cluster and source.block <= 1024
    assert compile_cubin(source.text, target, name=source.name).image
