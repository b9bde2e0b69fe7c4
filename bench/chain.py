"""What one kernel costs inside a replayed CUDA graph: the footing of the ORT table.

    python bench/chain.py OUT.json

The slope between a long and a short chain of launches of one kernel, as
``bench/baseline_table.py`` measures ONNX Runtime's operators. Large regions walk through enough
copies of their inputs that the weights come from memory. Regions: what the search offers for
the models of ``models/`` and for a norm in front of a 4096x4096 linear layer.
"""

import json
import sys
from pathlib import Path

import numpy as np
from cases import norm_linear

from mirage_onnx import pipeline
from mirage_onnx.codegen.candidates import compile_candidates
from mirage_onnx.importer import load_model
from mirage_onnx.pipeline import Options
from mirage_onnx.target import H200
from mirage_onnx.tune.device import Gpu

ROOT = Path(__file__).resolve().parents[1]
L2_COPIES_BYTES = 256 * 2**20


def chain_us(gpu, region, compiled, short, long):
    """Share of one launch sequence of ``compiled`` in a replayed graph, median of 15."""
    rng = np.random.default_rng(0)
    tensors = compiled.candidate.ugraph.tensors
    sizes = {
        t.name: int(np.prod([region.extents[a] for a in t.axes])) * t.dtype.size_bytes
        for t in tensors
    }
    total = sum(sizes.values())
    copies = max(1, min(16, L2_COPIES_BYTES // total + 1)) if total > 2**20 else 1
    sets = []
    for _ in range(copies):
        at = {}
        for t in tensors:
            count = sizes[t.name] // t.dtype.size_bytes
            values = rng.standard_normal(count) * 0.1
            at[t.name] = gpu.put(values.astype(t.dtype.numpy))
        sets.append(at)
    functions = [
        (gpu.load(c, s.name, s.smem_bytes), s)
        for s, c in zip(compiled.sources, compiled.cubins, strict=True)
    ]

    def work(length):
        for i in range(length):
            for function, source in functions:
                gpu.launch_source(function, source, sets[i % copies])

    work(2)
    gpu.wait()
    replays = [gpu.capture(lambda n=n: work(n)) for n in (short, long)]
    a, b = (np.median(t) for t in gpu.time_us(replays, 15))
    return float(b - a) / (long - short)


def main():
    gpu = Gpu(H200)
    rows = []
    regions = []
    for name in ("llama_decode", "lora", "bert", "rmsnorm_linear"):
        run = pipeline.run(load_model(ROOT / "models" / f"{name}.onnx"), Options(H200))
        for o in run.outcomes.values():
            if o.compiled and o.result:
                regions.append((name, o.region, [v.candidate for v in o.result.candidates]))
    for batch in (1, 8, 16):
        loaded = load_model(norm_linear(batch).model)
        run = pipeline.run(loaded, Options(H200))
        for o in run.outcomes.values():
            if o.compiled and o.result:
                found = [v.candidate for v in o.result.candidates]
                regions.append((f"norm_linear b={batch}", o.region, found))
    for name, region, candidates in regions:
        compiled, _ = compile_candidates(region, candidates, H200, keep=6)
        for c in compiled:
            big = "norm_linear" in name
            with gpu.scope():
                us = chain_us(gpu, region, c, 8 if big else 20, 24 if big else 60)
            params = " | ".join(p.to_text() for p in c.candidate.params)
            loop = "loop" if any(k.loop for k in c.candidate.ugraph.kernels) else "row"
            rows.append([name, region.key, loop, len(c.sources), params,
                         c.candidate.predicted_us, us])  # fmt: skip
            print(*rows[-1][:5], f"{rows[-1][5]:.2f} -> {us:.2f}", flush=True)
    Path(sys.argv[1]).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
