"""Speed of optimized models on this GPU, beside what a user would run instead.

    python bench/run.py [--cases rmsnorm_linear] [--batch 1 8 16] [--out DIR] [--no-compile]

Writes DIR/speed.json and prints a table; exits 1 if an arm is wrong or is not what it claims to be.
How a time is taken: ``protocol.py``. Needs torch and onnxruntime-gpu.
"""

from __future__ import annotations

import torch  # isort: skip  (before onnxruntime, which needs the CUDA libraries that it loads)

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cases
import numpy as np
import onnx
from protocol import (
    facts,
    gpu_state,
    graph_nodes,
    print_table,
    relative_error,
    statistics,
    streaming_limit,
    write_text,
)
from torch_peers import Arm, Library, Unfused, torch_arm

import mirage_onnx
from mirage_onnx import pipeline
from mirage_onnx.custom_op import read_bundle
from mirage_onnx.importer import load_model
from mirage_onnx.tune.device import Gpu, present_target
from mirage_onnx.tune.measure import Inputs, draw, gpu_of, prepare
from mirage_onnx.tune.ort_run import OrtRun
from mirage_onnx.verify.weights import sample_weights

MEASURED, PREDICTED = "mirage-onnx, measured", "mirage-onnx, predicted"
LIMIT = "streaming limit"
SAMPLES = 41
#: Largest relative L2 error against float64: fp16 rounding in and between operators.
TOLERANCE = 2e-3


def ort_arms(
    name: str, gpu: Gpu, model: str, x: np.ndarray, make: Callable[..., Any] | None = None
) -> dict[str, Arm]:
    """The same session twice: its run captured by us, and its own CUDA graph with IOBinding.

    A replay of the latter may wait for the GPU before it returns.
    """
    found = {}
    for cuda_graph in (False, True):
        run = OrtRun(gpu, model, {"x": x}, make=make, cuda_graph=cuda_graph)
        call = run if cuda_graph else run.captured()

        def result(run: OrtRun = run, call: Callable[[], object] = call) -> np.ndarray:
            (out,) = run.outputs.values()
            out.update_inplace(np.full(out.shape(), np.nan, np.float16))
            torch.cuda.synchronize()
            call()
            (got,) = run.results().values()
            return got

        note: dict[str, Any] = {"providers": run.session.get_providers()}
        if not cuda_graph:
            note["nodes"] = graph_nodes(gpu, run)
        if make is not None:
            note["launches"] = mirage_onnx.launches(run.session)
            if not note["launches"] or not all(note["launches"].values()):
                raise RuntimeError(f"{name}: no kernel of ours ran: {note['launches']}")
        found[name + (", enable_cuda_graph" if cuda_graph else "")] = Arm(call, result, note)
    return found


def optimized(name: str, target: str, gpu: Gpu, source: Path, x: np.ndarray) -> dict[str, Arm]:
    """Sessions of the model that ``optimize`` writes for the target."""
    path = source.with_name(f"{source.stem}_{target}.onnx")
    report = mirage_onnx.optimize(source, path, target=target, workers=1).report
    model = onnx.load(path)
    bundles = [t for t in model.graph.initializer if t.data_type == onnx.TensorProto.UINT8]
    if not bundles:
        raise RuntimeError(f"{name}: nothing was replaced: {report['regions']}")
    arms = ort_arms(name, gpu, str(path), x, mirage_onnx.InferenceSession)
    plans = [
        p for b in bundles for p in read_bundle(onnx.numpy_helper.to_array(b).tobytes()).provenance
    ]
    for arm in arms.values():
        arm.note |= {"regions": report["regions"], "params": [p["params"] for p in plans]}
    return arms


def kernels_alone(gpu: Gpu, source: Path) -> dict[str, Arm]:
    """What ``optimize`` chooses by measuring, launched by us, with no session around it."""
    loaded = load_model(source)
    options = pipeline.Options(gpu.target, workers=1, measure=True)
    ((_, outcome),) = pipeline.run(loaded, options).chosen
    region, compiled = outcome.region, outcome.compiled
    assert compiled is not None
    data, oracle = draw(region, sample_weights(loaded, region), np.random.default_rng(0))
    replay, outputs = prepare(gpu, region, compiled, Inputs(gpu, region, data))
    wrong = oracle.complaint(gpu, replay, outputs)
    if wrong:
        raise RuntimeError(wrong)
    params = [p.to_text() for p in compiled.candidate.params]
    registers = [c.registers for c in compiled.cubins]
    return {"its kernels alone": Arm(replay, None, {"params": params, "registers": registers})}


def norm_linear(batch: int, gpu: Gpu, folder: Path, compiled: bool) -> dict[str, Any]:
    """All arms of RMSNorm + linear 4096 x 4096 at one batch."""
    case = cases.norm_linear(batch)
    exact, source = case.exact(), folder / f"rmsnorm_linear_b{batch}.onnx"
    onnx.save(case.model, source)
    x = torch.from_numpy(case.x).cuda()
    failed: list[str] = []
    arms: dict[str, Arm] = {}

    def add(what: str, make: Callable[[], dict[str, Arm]]) -> None:
        try:
            arms.update(make())
        except Exception as error:
            failed.append(f"b={batch} {what}: {type(error).__name__}: {str(error)[:500]}")
            print("FAILED", failed[-1], file=sys.stderr, flush=True)

    def compile_unfused() -> dict[str, Arm]:
        torch._dynamo.reset()
        model = torch.compile(Unfused(case), mode="max-autotune-no-cudagraphs")
        return {"torch.compile max-autotune": torch_arm(lambda: model(x), mode="CUDA graph by us")}

    def library(transposed: bool) -> dict[str, Arm]:
        model = Library(case, transposed=transposed)
        layout = "(hidden, out)" if transposed else "(out, hidden)"
        return {f"torch rms_norm + matmul, {layout}": torch_arm(lambda: model(x))}

    def limit() -> dict[str, Arm]:
        call, shape = streaming_limit(gpu, case.weight_bytes)
        return {LIMIT: Arm(call, None, {"bytes": case.weight_bytes, "launch": shape})}

    with torch.no_grad(), gpu.scope():
        add(MEASURED, lambda: optimized(MEASURED, "local", gpu, source, case.x))
        add(PREDICTED, lambda: optimized(PREDICTED, "h200", gpu, source, case.x))
        add("kernels alone", lambda: kernels_alone(gpu, source))
        add("onnxruntime", lambda: ort_arms("onnxruntime", gpu, str(source), case.x))
        if compiled:
            add("torch.compile", compile_unfused)
        add("library", lambda: library(False))
        add("library", lambda: library(True))
        add(LIMIT, limit)
        rows: dict[str, dict[str, Any]] = {}
        for name, arm in arms.items():
            rows[name] = dict(arm.note)
            if arm.result is not None:
                rows[name]["error"] = error = relative_error(arm.result(), exact)
                if not error <= TOLERANCE:
                    failed.append(f"b={batch} {name}: error {error:.1e} against float64")
        times = gpu.time_us([a.call for a in arms.values()], SAMPLES)
        state = gpu_state()
    for row, samples in zip(rows.values(), times, strict=True):
        row |= statistics(samples)
    return {
        "case": f"rmsnorm_linear 4096x4096 b={batch}",
        "gpu_after": state,
        "arms": rows,
        "failed": failed,
    }


CASES = {"rmsnorm_linear": norm_linear}


def show(result: dict[str, Any]) -> None:
    arms = result["arms"]
    ours = arms.get(MEASURED, arms.get(PREDICTED, {})).get("us", float("nan"))
    rows = [
        [name, f"{a['us']:.2f}", f"{a['q1']:.2f}-{a['q3']:.2f}", f"{a['us'] / ours:.2f}",
         f"{a['error']:.1e}" if "error" in a else "-"]
        for name, a in arms.items()
    ]  # fmt: skip
    print_table(result["case"], ("arm", "us", "quartiles", "/ ours", "error"), rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 8, 16])
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    options = parser.parse_args()
    target = present_target()
    if target is None:
        sys.exit("there is no GPU here that has a device profile")
    gpu = gpu_of(target)
    torch.cuda.set_stream(torch.cuda.ExternalStream(gpu.stream_address))
    found: dict[str, Any] = facts() | {"cuda_of_torch": torch.version.cuda, "results": []}
    with tempfile.TemporaryDirectory() as folder:
        for name in options.cases:
            for batch in options.batch:
                result = CASES[name](batch, gpu, Path(folder), not options.no_compile)
                show(result)
                found["results"].append(result)
                write_text(options.out / "speed.json", json.dumps(found, indent=1) + "\n")
    return 1 if any(r["failed"] for r in found["results"]) else 0


if __name__ == "__main__":
    sys.exit(main())
