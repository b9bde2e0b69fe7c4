"""Device profiles: one row a GPU. What was measured on it besides is in ``tables``, by its name.

Rates of the H200 and the H100 were measured (``bench/results/h200``, ``bench/results/h100``); a row can
be filled so with ``mirage-onnx calibrate``. Of the others only what the manufacturer publishes is known
(data sheets and architecture white papers; dense fp16 products with fp32 sums): their rates are the
share of it that those two reach, and are marked ``Rated.DATASHEET``. What is chosen by such a row has
to win by more (``tune/baseline.py``). A profile is one GPU: a part of one, or another of the same chip,
has other memory and other times (``names.py`` makes profiles of those).
"""

from mirage_onnx.targets.architectures import ARCHITECTURES, Architecture
from mirage_onnx.targets.profile import Rated, Target

#: Of what is published, what pure reads and a library's products reach: the less of the two measured GPUs'
#: (3.17 of 3.35 TB/s and 4.6 of 4.8; 748 and 780 of 989 TFLOP/s).
READ_SHARE, PRODUCT_SHARE = 0.946, 0.756
#: Of the two, the slower one's: nobody publishes these.
LAUNCH_US, RAMP_US = 0.95, 3.5
#: Bytes that a multiprocessor reads from L2 in a cycle: 5.5 TB/s of an H200.
L2_BYTES_PER_CYCLE = 24.5


def published(
  name: str,
  gpu: str,
  arch: str,
  multiprocessors: int,
  l2_mb: float,
  clock_mhz: int,
  gbps: float,
  tflops: float,
) -> Target:
  """A GPU of which the manufacturer's figures are known; ``clock_mhz``: the boost clock."""
  return profile(
    name, gpu, ARCHITECTURES[arch], multiprocessors,
    l2_bytes=int(l2_mb * 2**20),
    launch_us=LAUNCH_US, ramp_us=RAMP_US,
    stream_tbps=round(READ_SHARE * gbps / 1e3, 4), mma_tflops=round(PRODUCT_SHARE * tflops, 2),
    l2_tbps=round(L2_BYTES_PER_CYCLE * multiprocessors * clock_mhz / 1e6, 3),
    cycles_per_us=float(clock_mhz), published_tbps=gbps / 1e3, published_tflops=tflops,
    rated=Rated.DATASHEET, ranked_by="h200",
  )  # fmt: skip


def profile(
  name: str, gpu: str, architecture: Architecture, multiprocessors: int,
  *, l2_bytes: int, launch_us: float, ramp_us: float, stream_tbps: float, mma_tflops: float, l2_tbps: float,
  cycles_per_us: float, published_tbps: float, published_tflops: float, rated: Rated = Rated.MEASURED,
  ranked_by: str = "",
) -> Target:  # fmt: skip
  """A GPU of an architecture: its limits and features, and the chip's own size and rates."""
  a = architecture
  return Target(
    name=name, gpu=gpu, arch=a.arch, suffix=a.suffix, capability=a.capability,
    multiprocessors=multiprocessors, sm_threads=a.sm_threads, sm_blocks=a.sm_blocks,
    reserved_smem_bytes=a.reserved_smem_bytes, smem_bytes=a.smem_bytes, smem_per_sm_bytes=a.smem_per_sm_bytes,
    registers_per_sm=a.registers_per_sm, l2_bytes=l2_bytes, has_clusters=a.has_clusters,
    max_cluster=a.max_cluster, has_pdl=a.has_pdl, instructions=a.instructions,
    launch_us=launch_us, ramp_us=ramp_us, stream_tbps=stream_tbps, mma_tflops=mma_tflops, l2_tbps=l2_tbps,
    lanes=a.lanes, cycles_per_us=cycles_per_us, published_tbps=published_tbps,
    published_tflops=published_tflops, rated=rated, ranked_by=ranked_by,
  )  # fmt: skip


_SM90A = ARCHITECTURES["sm_90a"]
_ROWS = (
  profile(
    "h200", "NVIDIA H200", _SM90A, 132,
    l2_bytes=60 * 2**20, launch_us=0.95, ramp_us=1.75, stream_tbps=4.6, mma_tflops=780.0, l2_tbps=5.5,
    cycles_per_us=1700.0, published_tbps=4.8, published_tflops=989.0,
  ),
  # The SXM module of 80 GB. ONNX Runtime's times on it are known; which products predictions may choose is
  # what the H200 says (``tune/other_gpu.py``).
  profile(
    "h100", "NVIDIA H100 80GB HBM3", _SM90A, 132,
    l2_bytes=50 * 2**20, launch_us=0.9, ramp_us=3.5, stream_tbps=3.17, mma_tflops=748.0, l2_tbps=5.5,
    cycles_per_us=1700.0, published_tbps=3.35, published_tflops=989.0, ranked_by="h200",
  ),
  # name, what the driver calls it, arch, multiprocessors, L2 MB, boost MHz, GB/s, dense fp16 TFLOP/s
  published("a100-40gb", "NVIDIA A100-SXM4-40GB", "sm_80", 108, 40, 1410, 1555, 312),
  published("a100-80gb", "NVIDIA A100-SXM4-80GB", "sm_80", 108, 40, 1410, 2039, 312),
  published("a100-pcie-40gb", "NVIDIA A100-PCIE-40GB", "sm_80", 108, 40, 1410, 1555, 312),
  published("a100-pcie-80gb", "NVIDIA A100 80GB PCIe", "sm_80", 108, 40, 1410, 1935, 312),
  published("a10", "NVIDIA A10", "sm_86", 72, 6, 1695, 600, 125),
  published("a40", "NVIDIA A40", "sm_86", 84, 6, 1740, 696, 149.7),
  published("rtx3090", "NVIDIA GeForce RTX 3090", "sm_86", 82, 6, 1695, 936, 71),
  published("orin", "Orin", "sm_87", 16, 4, 1300, 204.8, 42.5),
  published("l4", "NVIDIA L4", "sm_89", 58, 48, 2040, 300, 121),
  published("l40s", "NVIDIA L40S", "sm_89", 142, 96, 2520, 864, 362),
  published("rtx4090", "NVIDIA GeForce RTX 4090", "sm_89", 128, 72, 2520, 1008, 165.2),
  published("h100-pcie", "NVIDIA H100 PCIe", "sm_90a", 114, 50, 1755, 2039, 756),
  published("gh200", "NVIDIA GH200 480GB", "sm_90a", 132, 60, 1980, 4000, 989),
  published("sm_90", "any of compute capability 9.0", "sm_90", 132, 50, 1755, 3350, 989),
  published("b200", "NVIDIA B200", "sm_100a", 148, 126, 1965, 7700, 2250),
  published("b300", "NVIDIA B300 SXM6 AC", "sm_103a", 148, 126, 1965, 8000, 2250),
  published("rtx5090", "NVIDIA GeForce RTX 5090", "sm_120a", 170, 96, 2407, 1792, 209.5),
  published(
    "rtx-pro-6000", "NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "sm_120a",
    188, 128, 2617, 1792, 503.8,
  ),
  published("gb10", "NVIDIA GB10", "sm_121a", 48, 24, 2523, 273, 125),
)  # fmt: skip

TARGETS: dict[str, Target] = {t.name: t for t in _ROWS}
H200, H100 = TARGETS["h200"], TARGETS["h100"]
