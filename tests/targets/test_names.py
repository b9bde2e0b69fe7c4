"""What a user calls a GPU: any spelling of a row, an architecture, a GPU of one, or what there is."""

import pytest
from refused import refused

from mirage_onnx.targets import ARCHITECTURES, TARGETS, Rated, get_target, of_size, target_of_domain


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_every_row_by_its_name_and_by_the_drivers(target):
  for name in (
    target.name,
    target.name.upper(),
    target.name.replace("-", " "),
    target.gpu,
    target.gpu.lower(),
  ):
    assert get_target(name) is target


@pytest.mark.parametrize(
  ("said", "name"),
  [
    ("H200", "h200"), ("RTX 4090", "rtx4090"), ("rtx-4090", "rtx4090"), ("GeForce RTX 5090", "rtx5090"),
    ("a100", "a100-80gb"), ("A100-40GB", "a100-40gb"), ("H100 SXM", "h100"), ("H100_PCIe", "h100-pcie"),
    ("sm_80", "a100-40gb"), ("sm_86", "a10"), ("SM_89", "l4"), ("sm89", "l4"), ("sm_90", "sm_90"),
    ("sm_90a", "h100-pcie"), ("sm_100", "b200"), ("sm_103a", "b300"), ("sm_120", "rtx5090"),
    ("compute_86", "a10"), ("8.9", "l4"), ("12.0", "rtx5090"), ("9.0a", "h100-pcie"),
    ("A100 SXM 40GB", "a100-40gb"), ("H100-SXM5-80GB", "h100"), ("H200 SXM", "h200"),
    ("4090", "rtx4090"), ("5090", "rtx5090"), ("GeForce 3090", "rtx3090"),
  ],
)  # fmt: skip
def test_other_spellings(said, name):
  assert get_target(said) is TARGETS[name]


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_gpu_of_an_architecture_has_its_limits_and_a_share_of_its_rates(arch):
  row, found = ARCHITECTURES[arch], get_target(f"{arch}x46".upper())
  assert found == get_target(found.name) == of_size(row, 46) and found.name == f"{arch}x46"
  assert (found.arch, found.multiprocessors, found.smem_bytes) == (arch, 46, row.smem_bytes)
  like = min((t for t in TARGETS.values() if t.arch == arch), key=lambda t: t.stream_tbps)
  assert found.stream_tbps == pytest.approx(like.stream_tbps * 46 / like.multiprocessors)
  assert found.rated is Rated.DATASHEET and found.name not in TARGETS


@pytest.mark.parametrize(
  "said",
  ["T4", "Tesla T4", "V100", "P100", "K80", "sm_75", "7.5", "SM70", "RTX 2080 Ti", "GTX 1660",
   "Quadro RTX 8000", "TITAN RTX", "RTX 6000", "T1000", "NVIDIA T400 4GB", "GeForce MX450"],
)  # fmt: skip
def test_older_ones_are_told_so(said):
  with refused("TARGET_UNKNOWN") as error:
    get_target(said)
  assert "sm_80 (Ampere) or newer" in error.value.line()


@pytest.mark.parametrize(
  ("said", "arch"),
  [
    ("A30", "sm_80"), ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", "sm_80"), ("A10G", "sm_86"),
    ("NVIDIA RTX A6000", "sm_86"), ("RTX 3080", "sm_86"), ("Jetson Orin NX", "sm_87"), ("L40", "sm_89"),
    ("NVIDIA GeForce RTX 4080 SUPER", "sm_89"), ("NVIDIA RTX 6000 Ada Generation", "sm_89"),
    ("NVIDIA RTX A1000", "sm_86"), ("RTX A3000", "sm_86"), ("RTX A500", "sm_86"),
    ("GeForce RTX 2050", "sm_86"),
    ("NVIDIA RTX 2000 Ada Generation", "sm_89"), ("RTX 500 Ada", "sm_89"), ("RTX 4500 Ada", "sm_89"),
    ("NVIDIA H100 NVL", "sm_90a"), ("H20", "sm_90a"),
    ("GB200", "sm_100a"), ("GB300", "sm_103a"), ("RTX 5080", "sm_120a"),
    ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "sm_120a"), ("RTX PRO 4500", "sm_120a"),
    ("NVIDIA GH200 144G HBM3e", "sm_90a"), ("4080 SUPER", "sm_89"), ("3090 Ti", "sm_86"),
  ],
)  # fmt: skip
def test_one_without_a_row_is_told_its_architecture(said, arch):
  with refused("TARGET_UNKNOWN") as error:
    get_target(said)
  line = error.value.line()
  assert (
    f"{said!r}: it has no row; {arch} makes kernels that run on it ({arch}x46" in line and "\n" not in line
  )
  assert get_target(arch).arch == arch


@pytest.mark.parametrize(
  "said",
  [
    "",
    "h300",
    "80",
    "8.5",
    "MI300",
    "sm_",
    "sm_85",
    "sm_86x0",
    "sm_86x4096",
    "sm_75x40",
    "40900",
    "a100,h200",
    "x" * 400,
  ],
)
def test_unknown_ones_are_told_what_there_is(said):
  with refused("TARGET_UNKNOWN") as error:
    get_target(said)
  line = error.value.line()
  assert all(name in line for name in (*TARGETS, *ARCHITECTURES)) or "sm_80 (Ampere)" in line
  assert "\n" not in line


@pytest.mark.parametrize(
  ("said", "meant"), [("rtx4900", "rtx4090"), ("b20", "b200"), ("RTX Pro 600", "rtx-pro-6000"), ("foo", "")]
)
def test_a_slip_is_told_what_was_meant(said, meant):
  with refused("TARGET_UNKNOWN") as error:
    get_target(said)
  assert f"(did you mean {meant}?)" in error.value.line() if meant else "mean" not in error.value.line()


def test_a_domain_is_a_gpu_with_its_instructions():
  """Of one whose kernels may be of either row, the one that has more."""
  assert target_of_domain("sm90a").instructions == ("wgmma",)
  assert {target_of_domain(a.suffix).capability for a in ARCHITECTURES.values()} == {
    a.capability for a in ARCHITECTURES.values()
  }
  assert target_of_domain("sm75") is None
