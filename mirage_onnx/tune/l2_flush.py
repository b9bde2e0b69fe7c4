"""What empties a GPU's L2 before each timed call: clean lines only, read twice."""

from mirage_onnx.target import Target

#: Bytes of a read, the second of which leaves nothing of what was in the L2. So many times a smaller L2 (6 MB
#: of an A10, whose memory takes four times as long to read as much).
FLUSH_BYTES, LEAST_FLUSH_BYTES, FLUSHED_L2S = 256 * 2**20, 64 * 2**20, 6
#: In front of a call of a look (``graph_clock.py``): so many times an L2. On an H100 13 arms took the same to
#: 0.3 us as behind reads of 256 MB, and all of them together a third of the time (h100/clocks.json).
LOOK_L2S = 1.28

FLUSH = """
extern "C" __global__ void read_all(const uint4* data, unsigned long long count, unsigned* out) {
    unsigned acc = 0;
    unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
    for (unsigned long long i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        uint4 v = data[i];
        acc ^= v.x ^ v.y ^ v.z ^ v.w;
    }
    if (acc == 0x9e3779b9u) *out = acc;  // never true in practice: keeps the reads
}
"""


def flush_bytes(target: Target) -> int:
  """Of each read in front of a call that is timed by itself."""
  return min(FLUSH_BYTES, max(LEAST_FLUSH_BYTES, FLUSHED_L2S * target.l2_bytes >> 20 << 20))


def look_flush_bytes(target: Target) -> int:
  """Of each read in front of a call of a look."""
  return min(flush_bytes(target), max(LEAST_FLUSH_BYTES, int(LOOK_L2S * target.l2_bytes) >> 20 << 20))
