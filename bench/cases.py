"""What is benchmarked: models as an exporter writes them, at the sizes that matter."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "models")]

from scale_rmsnorm_linear import TEMPLATE, scale  # noqa: E402


@dataclass(frozen=True)
class NormLinear:
    """x -> RMSNorm -> linear without bias, fp16; ``weight`` is (out, hidden), as torch keeps it."""

    model: onnx.ModelProto
    gamma: np.ndarray
    weight: np.ndarray
    epsilon: float
    x: np.ndarray

    @property
    def weight_bytes(self) -> int:
        return self.weight.nbytes + self.gamma.nbytes

    def exact(self) -> np.ndarray:
        """The output in float64, without any rounding on the way."""
        x = self.x.astype(np.float64)
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + self.epsilon) * self.gamma
        return np.asarray(x @ self.weight.astype(np.float64).T)


def norm_linear(batch: int, hidden: int = 4096, out: int = 4096) -> NormLinear:
    """The committed model at another size, with random weights and a random input."""
    model = scale(onnx.load(TEMPLATE), batch, hidden, out)
    values = [numpy_helper.to_array(t) for t in model.graph.initializer]
    gamma = next(v for v in values if v.ndim == 1 and v.size > 1)
    weight = next(t for t in model.graph.initializer if len(t.dims) == 2)
    (reader,) = (n for n in model.graph.node if weight.name in n.input)
    matrix = numpy_helper.to_array(weight)
    if not any(a.name == "transB" and a.i for a in reader.attribute):
        matrix = np.ascontiguousarray(matrix.T)
    epsilon = next(float(v.ravel()[0]) for v in values if v.size == 1 and 0 < v.ravel()[0] < 1e-3)
    x = np.random.default_rng(batch).standard_normal((batch, hidden)).astype(np.float16)
    return NormLinear(model, gamma, matrix, epsilon, x)


def residual_norm(batch: int, hidden: int) -> onnx.ModelProto:
    """y = x + residual and its RMSNorm, as the exporter writes a norm in half precision."""
    node = helper.make_node
    rng = np.random.default_rng(0)
    weights = {
        "gamma": (1 + 0.1 * rng.standard_normal(hidden)).astype(np.float16),
        "two": np.array(2, np.float32),
        "axes": np.array([-1], np.int64),
        "epsilon": np.array(1e-6, np.float32),
    }
    nodes = [
        node("Add", ["x", "residual"], ["y"]),
        node("Cast", ["y"], ["wide"], to=TensorProto.FLOAT),
        node("Pow", ["wide", "two"], ["square"]),
        node("ReduceMean", ["square", "axes"], ["mean"], keepdims=1),
        node("Add", ["mean", "epsilon"], ["safe"]),
        node("Sqrt", ["safe"], ["root"]),
        node("Reciprocal", ["root"], ["inverse"]),
        node("Mul", ["wide", "inverse"], ["unit"]),
        node("Cast", ["unit"], ["narrow"], to=TensorProto.FLOAT16),
        node("Mul", ["gamma", "narrow"], ["normed"]),
    ]
    for i, n in enumerate(nodes):
        n.name = f"n{i}"
    info = helper.make_tensor_value_info
    shape = (batch, hidden)
    graph = helper.make_graph(
        nodes, "residual_norm",
        [info(n, TensorProto.FLOAT16, shape) for n in ("x", "residual")],
        [info(n, TensorProto.FLOAT16, shape) for n in ("y", "normed")],
        [numpy_helper.from_array(v, n) for n, v in weights.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def _model(batch: int, size: int) -> onnx.ModelProto:
    return norm_linear(batch, size, size).model


#: What ``sweep.py`` measures; made when needed, because compiler processes import this file.
SWEEP: dict[str, Callable[[], onnx.ModelProto]] = {
    **{f"norm_linear 4096x4096 M={m}": partial(_model, m, 4096) for m in (8, 16, 1)},
    **{f"norm_linear 64x64 M={m}": partial(_model, m, 64) for m in (2, 8)},
    **{f"residual_norm 8x{n}": partial(residual_norm, 8, n) for n in (4096, 64)},
}
