"""The value of a region's steps: what ONNX says, by position and numpy broadcasting.

Recorded shapes are read only to know which dimensions of a reshape are 1, so a region also runs at
other extents.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from mirage_onnx.ir.dtype import DType, round_to
from mirage_onnx.ir.ops import ELEMENTWISE, IRRATIONAL
from mirage_onnx.ir.program import Constant, Dim, Operand, Step
from mirage_onnx.ir.region import Region, RegionTensor
from mirage_onnx.verify.domain import real_power


def interpret_steps(
    region: Region, inputs: Mapping[str, np.ndarray], *, rounded: bool
) -> dict[str, np.ndarray]:
    """ONNX tensor name -> float64 array, for the inputs (by ONNX name) and every step.

    ``rounded``: every result is rounded to its recorded element type, op by op. Otherwise casts
    change nothing, as in the algebra.

    Raises:
        ValueError: a step cannot be run on these shapes.
    """
    env = dict(inputs)
    recorded = {i.tensor.name: i.tensor.shape for i in region.inputs}

    def operand(x: Operand) -> np.ndarray:
        if isinstance(x, Constant):
            return constant_value(x)
        return env[x] if x in env else constant_value(region.constants[x])

    for step in region.steps:
        if step.op == "reshape":
            name = step.inputs[0]
            assert isinstance(name, str)
            result = _move_ones(operand(name), recorded.get(name), step.output.shape)
        else:
            with np.errstate(all="ignore"):
                result = _run(step, operand)
        dtype = step.attr if step.op == "cast" else step.output.dtype
        if rounded and isinstance(dtype, DType):
            result = round_to(result, dtype)
        env[step.output.name] = result
        recorded[step.output.name] = step.output.shape
    return env


def _run(step: Step, operand: object) -> np.ndarray:
    assert callable(operand)
    args = [np.asarray(operand(x)) for x in step.inputs[:1]]
    if step.op == "pow":
        exponent = step.inputs[1]
        if not isinstance(exponent, Constant) or exponent.exponent != 1:
            raise ValueError(f"pow takes an exact rational exponent, not {exponent}")
        assert not isinstance(exponent.base, str)
        return real_power(args[0], exponent.base)
    args += [np.asarray(operand(x)) for x in step.inputs[1:]]
    match step.op, step.attr:
        case "cast", _:
            return args[0]
        case "matmul", _:
            return np.matmul(*args)
        case "sum", tuple(axes):
            return np.asarray(args[0].sum(axis=axes, keepdims=True))
        case "mean", tuple(axes):
            return np.asarray(args[0].mean(axis=axes, keepdims=True))
        case "rmax", tuple(axes):
            return np.asarray(args[0].max(axis=axes, keepdims=True))
        case "transpose", tuple(order):
            return args[0].transpose(order)
        case op, _ if op in ELEMENTWISE:
            return ELEMENTWISE[op].fn(*args)
    raise ValueError(f"no meaning for the step {step.op} with attribute {step.attr}")


def constant_value(c: Constant) -> np.ndarray:
    base = IRRATIONAL[c.base] if isinstance(c.base, str) else float(c.base)
    return np.asarray(base ** float(c.exponent))


def _move_ones(
    x: np.ndarray, before: tuple[Dim, ...] | None, after: tuple[Dim, ...] | None
) -> np.ndarray:
    """Reshape x where ``before`` and ``after`` differ by dimensions of extent 1 only.

    Other dimensions keep their order and the size that they have in x, whatever was recorded.
    """
    if before is None or after is None:
        raise ValueError("a reshape of unknown shape")
    shape = (1,) * (len(before) - x.ndim) + x.shape
    sizes = [n for n, d in zip(shape, before, strict=True) if d != 1]
    if len(sizes) != sum(d != 1 for d in after):
        raise ValueError(f"a reshape from {before} to {after} moves more than ones")
    rest = iter(sizes)
    return x.reshape([1 if d == 1 else next(rest) for d in after])


def positional(tensor: RegionTensor, data: np.ndarray) -> np.ndarray:
    """An array over ``tensor.axes`` by the dimensions of the ONNX tensor (at any extents)."""
    recorded = tensor.tensor.shape or ()
    holds = [d is not None for d in tensor.dims] if tensor.dims else [d != 1 for d in recorded]
    if sum(holds) != data.ndim:
        raise ValueError(f"{tensor.tensor.name} of shape {recorded} is not over {tensor.axes}")
    sizes = iter(data.shape)
    return data.reshape([next(sizes) if h else 1 for h in holds])


def by_axes(tensor: RegionTensor, data: np.ndarray, extents: Mapping[str, int]) -> np.ndarray:
    """The inverse of ``positional``."""
    return data.reshape([extents[a] for a in tensor.axes])
