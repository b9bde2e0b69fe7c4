"""Measure ONNX Runtime's own kernels on this GPU: the table that predicts what a region costs today.

    python bench/baseline_table.py OUT.json

Each operator is timed as the slope between a long and a short chain of itself, in the CUDA
execution provider with a CUDA graph, so launch and session overheads cancel and what remains is
the operator's share of a replayed graph. Contractions with large weights use a different weight
per link, so that the weights come from memory and not from L2. Random data throughout.
"""

from __future__ import annotations

import json
import sys
import time

import torch  # noqa: F401  (loads the CUDA libraries that onnxruntime needs)
import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

F16, F32 = TensorProto.FLOAT16, TensorProto.FLOAT


def session(model: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    s = ort.InferenceSession(
        model.SerializeToString(), options,
        providers=[("CUDAExecutionProvider", {"enable_cuda_graph": "1"})],
    )  # fmt: skip
    assert s.get_providers()[0] == "CUDAExecutionProvider", s.get_providers()
    return s


def replay_us(model: onnx.ModelProto, feeds: dict[str, np.ndarray], repeats: int = 30) -> float:
    """Median wall time of one graph replay."""
    s = session(model)
    binding = s.io_binding()
    keep = []
    for name, x in feeds.items():
        v = ort.OrtValue.ortvalue_from_numpy(x, "cuda", 0)
        keep.append(v)
        binding.bind_ortvalue_input(name, v)
    for o in s.get_outputs():
        dtype = np.float16 if o.type == "tensor(float16)" else np.float32
        v = ort.OrtValue.ortvalue_from_shape_and_type(list(o.shape), dtype, "cuda", 0)
        keep.append(v)
        binding.bind_ortvalue_output(o.name, v)
    for _ in range(5):
        s.run_with_iobinding(binding)
    times = []
    for _ in range(repeats):
        t = time.perf_counter()
        s.run_with_iobinding(binding)
        times.append((time.perf_counter() - t) * 1e6)
    return float(np.median(times))


def chain(op: str, shape: tuple[int, ...], length: int, dtype: int) -> onnx.ModelProto:
    """x -> op -> op -> ... ; binary operators take a second input that is always the same."""
    nodes, inits, value = [], [], "x"
    in_type = dtype
    width = shape[-1]
    rng = np.random.default_rng(0)
    np_type = np.float16 if dtype == F16 else np.float32
    if op == "LayerNormalization":
        for n in ("g", "b"):
            inits.append(onnx.numpy_helper.from_array(rng.standard_normal(width).astype(np_type), n))
    if op == "ReduceMean":
        inits.append(onnx.numpy_helper.from_array(np.array([-1], np.int64), "axes"))
    if op == "Pow":
        inits.append(onnx.numpy_helper.from_array(np.array(2.0, np_type), "two"))
    if op in ("Add", "Mul", "AddRow"):
        inits.append(onnx.numpy_helper.from_array(rng.standard_normal(width).astype(np_type), "row"))
    for i in range(length):
        out = f"v{i}"
        if op == "Cast":
            to = F32 if i % 2 == 0 else F16
            nodes.append(helper.make_node("Cast", [value], [out], to=to))
        elif op in ("Add", "Mul"):
            nodes.append(helper.make_node(op, [value, "y"], [out]))
        elif op == "AddRow":
            nodes.append(helper.make_node("Add", [value, "row"], [out]))
        elif op == "Pow":
            nodes.append(helper.make_node("Pow", [value, "two"], [out]))
        elif op == "ReduceMean":
            nodes.append(helper.make_node("ReduceMean", [value, "axes"], [out + "m"], keepdims=1))
            nodes.append(helper.make_node("Add", [out + "m", "y"], [out]))
        elif op == "LayerNormalization":
            nodes.append(helper.make_node(op, [value, "g", "b"], [out], axis=-1))
        elif op == "Softmax":
            nodes.append(helper.make_node(op, [value], [out], axis=-1))
        else:
            nodes.append(helper.make_node(op, [value], [out]))
        value = out
    out_type = dtype
    if op == "Cast":
        in_type, out_type = F16, (F32 if length % 2 else F16)
    inputs = [helper.make_tensor_value_info("x", in_type, shape)]
    if op in ("Add", "Mul", "ReduceMean"):
        inputs.append(helper.make_tensor_value_info("y", dtype, shape))
    outputs = [helper.make_tensor_value_info(value, out_type, shape)]
    graph = helper.make_graph(nodes, "chain", inputs, outputs, inits)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def matmul_chain(m: int, k: int, n: int, length: int, share: bool) -> onnx.ModelProto:
    """Pairs (m,k)x(k,n), (m,n)x(n,k): every link streams its own weight unless ``share``."""
    rng = np.random.default_rng(0)
    nodes, inits, value = [], [], "x"
    shapes = [(k, n), (n, k)]
    for i in range(length):
        name = f"w{i % 2 if share else i}"
        if not any(t.name == name for t in inits):
            w = (rng.standard_normal(shapes[i % 2]) / np.sqrt(shapes[i % 2][0])).astype(np.float16)
            inits.append(onnx.numpy_helper.from_array(w, name))
        nodes.append(helper.make_node("MatMul", [value, name], [f"v{i}"]))
        value = f"v{i}"
    graph = helper.make_graph(
        nodes, "chain",
        [helper.make_tensor_value_info("x", F16, (m, k))],
        [helper.make_tensor_value_info(value, F16, (m, k if length % 2 == 0 else n))], inits,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def slope_us(make, feeds, short: int, long: int) -> float:
    a, b = replay_us(make(short), feeds), replay_us(make(long), feeds)
    return (b - a) / (long - short)


def main() -> None:
    rng = np.random.default_rng(1)
    table: dict[str, object] = {"ort": ort.__version__, "gpu": torch.cuda.get_device_name(0)}
    ops: dict[str, list[list[float]]] = {}
    rows = [(8, 64), (8, 1024), (8, 4096), (64, 4096), (512, 4096), (4096, 4096)]
    names = ["Add", "AddRow", "Mul", "Cast", "Pow", "Sqrt", "Reciprocal", "Sigmoid", "Exp", "Erf",
             "Tanh", "Relu", "Gelu", "ReduceMean", "LayerNormalization", "Softmax", "Neg"]  # fmt: skip
    for op in names:
        for shape in rows:
            dtype = F32 if op in ("Pow", "ReduceMean", "Sqrt", "Reciprocal") else F16
            np_type = np.float32 if dtype == F32 else np.float16
            feeds = {"x": np.abs(rng.standard_normal(shape)).astype(np_type) * 0.5 + 0.5}
            if op in ("Add", "Mul", "ReduceMean"):
                feeds["y"] = np.full(shape, 1.0, np_type) * (1 if op == "Mul" else 0.01)
            try:
                us = slope_us(lambda n: chain(op, shape, n, dtype), feeds, 40, 120)
            except Exception as e:  # report and go on: the table says what is missing
                print("failed", op, shape, str(e)[:200], flush=True)
                continue
            if op == "ReduceMean":  # its link has an Add to restore the shape
                us -= next(t for e, t in ops["Add"] if e == shape[0] * shape[1])
            ops.setdefault(op, []).append([shape[0] * shape[1], round(us, 3)])
            print(op, shape, round(us, 2), flush=True)
    table["ops"] = ops
    gemm = []
    sizes = [(64, 64), (64, 128), (256, 256), (768, 3072), (1024, 1024), (4096, 4096), (4096, 14336)]
    for k, n in sizes:
        for m in (1, 2, 8, 16, 64, 256):
            big = k * n * 2 > 4e6
            short, long = (4, 12) if big else (20, 60)
            feeds = {"x": rng.standard_normal((m, k)).astype(np.float16)}
            us = slope_us(lambda c: matmul_chain(m, k, n, c, not big and k * n < 1e5), feeds, short, long)
            gemm.append([m, k, n, round(us, 3)])
            print("MatMul", m, k, n, round(us, 2), flush=True)
    table["matmul"] = gemm
    with open(sys.argv[1], "w") as f:
        json.dump(table, f, indent=1)


if __name__ == "__main__":
    main()
