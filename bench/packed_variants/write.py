"""Variants of an int4 product of few rows as text, in as many files as there are cores.

    python3 write.py CORES; nvcc -arch=sm_90a -std=c++20 -O3 -I mirage_onnx/codegen/device -c each, link them
    ./variants OUT.jsonl SECONDS [K,N,ROWS,TILES,WARPS,CLUSTER,STAGES,MODE]     (one launch, for ncu)

``variants.cuh`` says what a mode is, ``main.cu`` times them (h200/packed_variants.json). Written to decide what
the lowering does; no kernel of the package comes from here.
"""

import sys
from itertools import product
from pathlib import Path

#: Tiles of 16 columns, warps, cluster, stages, blocks of the launch bounds.
PLAIN = [
  (1, 8, 1, 2, 1), (1, 8, 1, 1, 4), (1, 16, 1, 1, 2), (2, 8, 1, 1, 3), (2, 16, 1, 1, 1), (2, 8, 1, 2, 2),
  (2, 8, 2, 1, 3), (2, 4, 1, 1, 6), (3, 8, 1, 1, 2), (3, 16, 1, 1, 1), (3, 8, 2, 1, 2), (3, 4, 1, 1, 4),
  (4, 8, 1, 1, 2), (4, 16, 1, 1, 1), (4, 8, 2, 1, 2), (7, 4, 2, 1, 3), (7, 8, 1, 1, 1), (7, 8, 2, 1, 1),
  (7, 4, 1, 1, 3),
]  # fmt: skip
RING = [
  (1, 8, 1, 4, 1), (1, 16, 1, 2, 1), (2, 8, 1, 2, 2), (2, 8, 1, 4, 1), (2, 16, 1, 2, 1), (3, 8, 1, 2, 2),
  (3, 8, 1, 4, 1), (3, 16, 1, 2, 1), (4, 8, 1, 2, 1), (7, 4, 2, 1, 4), (7, 4, 2, 2, 2), (7, 8, 1, 2, 1),
]  # fmt: skip


def chosen():
  """(K, tiles, warps, cluster, stages, mode, row tiles, bound) of all variants."""
  some = [(c, m, r) for c, m, r in product(PLAIN, range(5), (1, 2)) if m < 3 or r == 1]
  some += [(c, m, r) for c, m, r in product(RING, (5, 6), (1, 2)) if m == 6 or r == 1]
  for (tiles, warps, cluster, stages, bound), mode, rows in some:
    for depth in (4096, 14336):
      if depth % (warps * cluster * stages * 128) == 0 and (depth == 4096 or tiles in (1, 2, 4)):
        yield depth, tiles, warps, cluster, stages, mode, rows, bound


def main():
  every, cores = list(chosen()), int(sys.argv[1])
  files = [f for f in (every[i::cores] for i in range(cores)) if f]
  for i, some in enumerate(files):
    calls = "".join(f"  to.push_back(make<{', '.join(map(str, c))}>());\n" for c in some)
    text = f'#include <vector>\n#include "variants.cuh"\nvoid add_{i}(std::vector<Case>& to) {{\n{calls}}}\n'
    Path(f"part_{i}.cu").write_text(text)
  names = "".join(f"void add_{i}(std::vector<Case>&);\n" for i in range(len(files)))
  calls = "".join(f" add_{i}(to);" for i in range(len(files)))
  text = (
    f'#include <vector>\n#include "variants.cuh"\n{names}void add_all(std::vector<Case>& to) {{{calls} }}\n'
  )
  Path("parts.cu").write_text(text)


if __name__ == "__main__":
  main()
