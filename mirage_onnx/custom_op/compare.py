"""Compare two models in onnxruntime: same inputs, output by output, and which path each node ran.

Inputs: ``draws`` standard normal ones, then one of each kind of ``compare_inputs.KINDS``.

When an output passes is told in ``difference``.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import onnx
from google.protobuf.message import DecodeError

from mirage_onnx.custom_op.compare_inputs import draw_inputs
from mirage_onnx.custom_op.difference import (
    FLOOR,
    RTOL,
    OutputDifference,
    difference,
    typical_row,
    worse,
)
from mirage_onnx.custom_op.runtime import import_onnxruntime
from mirage_onnx.custom_op.session import CUDA_PROVIDER, InferenceSession, launches
from mirage_onnx.errors import MirageError

if TYPE_CHECKING:
    import onnxruntime as ort

NO_KERNEL = "no kernel ran: this compares the function bodies, it says nothing about kernels"

Model = str | os.PathLike[str] | bytes
_BFLOAT16 = "tensor(bfloat16)"


@dataclass(frozen=True, slots=True)
class NodePath:
    """A custom node of the second model; ``path`` is ``kernel``, ``emulated`` or ``body``."""

    name: str
    path: str
    launches: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """What ``compare_models`` found; ``inputs`` are the kinds that were tried."""

    passed: bool
    outputs: tuple[OutputDifference, ...]
    nodes: tuple[NodePath, ...]
    inputs: tuple[str, ...]
    note: str = ""

    @property
    def first_difference(self) -> OutputDifference | None:
        """The first output that is not bit-identical."""
        return next((o for o in self.outputs if not o.identical), None)

    @property
    def needed_rtol(self) -> float | None:
        """The least tolerance at which every output passes; None where there is none."""
        needed = [o.needed_rtol for o in self.outputs]
        return None if None in needed else max((n for n in needed if n is not None), default=0.0)

    def to_dict(self) -> dict[str, Any]:
        first = self.first_difference
        plain = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}
        return plain | {
            "first_difference": first.name if first else None,
            "needed_rtol": self.needed_rtol,
        }


def compare_models(
    a: Model,
    b: Model,
    *,
    seed: int = 0,
    provider: str = "cpu",
    draws: int = 4,
    dims: Mapping[str, int] | None = None,
    int_limits: Mapping[str, int] | None = None,
    rtol: float | None = None,
    ep: str | None = None,
    driver: str | None = None,
) -> Comparison:
    """Run ``a`` (the reference) and ``b`` on the same inputs.

    Args:
        a: the original model, a path or bytes.
        b: the optimized model.
        seed: of the inputs.
        provider: ``cpu`` or ``cuda``, for both.
        draws: how many standard normal inputs.
        dims: sizes of dynamic dimensions by name (default: ``compare_inputs.DEFAULT_DIM``).
        int_limits: exclusive upper ends of integer inputs by name (``DEFAULT_INT_LIMIT``).
        rtol: tolerance of every float output, instead of the default of its type.
        ep: for ``b``, as in ``mirage_onnx.InferenceSession``.
        driver: likewise; with ``ep="host"`` an emulator or a stand-in.

    Raises:
        MirageError: FILE_MISSING, SHAPES_DIFFER, SESSION_FAILED, OPTION_INVALID, and those of
            ``InferenceSession``.
    """
    if provider not in ("cpu", "cuda") or draws < 1:
        raise MirageError("OPTION_INVALID", f"provider={provider!r}, draws={draws}")
    left = _session(a, provider, "none", None)
    right = _session(b, provider, ep, driver)
    _check_signatures(left, right)
    precision = max(_precision(a), _precision(b))
    names = [value.name for value in left.get_outputs()]
    floors: dict[str, float] = {}
    worst: dict[str, OutputDifference] = {}
    kinds = []
    for kind, feeds in draw_inputs(left.get_inputs(), seed, draws, dims or {}, int_limits or {}):
        kinds.append(kind)
        results = zip(names, _run(left, feeds), _run(right, feeds), strict=True)
        for name, want, got in results:
            if name not in floors:
                floors[name] = FLOOR * typical_row(want)
            limit = max(precision, RTOL.get(want.dtype.name, 0.0)) if rtol is None else rtol
            found = difference(name, want, got, limit, floors[name], kind)
            worst[name] = worse(worst[name], found) if name in worst else found
    ran = "kernel" if provider == "cuda" else "emulated"
    nodes = tuple(
        NodePath(name, ran if count else "body", count) for name, count in launches(right).items()
    )
    outputs = tuple(worst[name] for name in names)
    note = "" if any(node.launches for node in nodes) else NO_KERNEL
    return Comparison(all(o.passed for o in outputs), outputs, nodes, tuple(kinds), note)


def _session(
    model: Model, provider: str, ep: str | None, driver: str | None
) -> ort.InferenceSession:
    if not isinstance(model, bytes) and not Path(model).is_file():
        raise MirageError("FILE_MISSING", f"{os.fspath(model)!r} does not exist")
    ort = import_onnxruntime()
    options = ort.SessionOptions()
    options.log_severity_level = 3
    providers = [CUDA_PROVIDER] if provider == "cuda" else []
    providers.append("CPUExecutionProvider")
    if providers[0] not in ort.get_available_providers():
        raise MirageError("SESSION_FAILED", f"this onnxruntime has no {providers[0]}")
    try:
        session = InferenceSession(model, options, providers, ep=ep, driver=driver)
    except MirageError:
        raise
    except Exception as error:  # onnxruntime has a class per status code and no common base
        raise MirageError("SESSION_FAILED", _one_line(error)) from error
    if session.get_providers()[0] != providers[0]:
        raise MirageError("SESSION_FAILED", f"onnxruntime could not use {providers[0]}")
    return session


def _one_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _check_signatures(left: ort.InferenceSession, right: ort.InferenceSession) -> None:
    for what in ("inputs", "outputs"):
        ours, theirs = (getattr(session, f"get_{what}")() for session in (left, right))
        for x, y in zip(ours, theirs, strict=False):
            if x.name != y.name or x.type != y.type or not _may_be_equal(x.shape, y.shape):
                raise MirageError(
                    "SHAPES_DIFFER",
                    f"{what}: {x.name} {x.type}{x.shape} against {y.name} {y.type}{y.shape}",
                )
        if len(ours) != len(theirs):
            raise MirageError("SHAPES_DIFFER", f"{len(ours)} {what} against {len(theirs)}")


def _may_be_equal(a: list[int | str | None], b: list[int | str | None]) -> bool:
    """Whether no pair of known dimensions differs. An unknown rank reads as ``[]``."""
    known = [(x, y) for x, y in zip(a, b, strict=False) if isinstance(x, int) & isinstance(y, int)]
    return (len(a) == len(b) or not a or not b) and all(x == y for x, y in known)


def _precision(model: Model) -> float:
    """The default tolerance of the least precise float type of a model."""
    try:
        if isinstance(model, bytes):
            graph = onnx.load_from_string(model).graph
        else:
            graph = onnx.load(os.fspath(model), load_external_data=False).graph
    except DecodeError:  # ORT's own format: known by its outputs only
        return 0.0
    kinds = {t.data_type for t in graph.initializer}
    kinds |= {
        v.type.tensor_type.elem_type for v in (*graph.input, *graph.output, *graph.value_info)
    }
    found = {onnx.TensorProto.DataType.Name(kind).lower() for kind in kinds}
    names = {"float": "float32", "double": "float64"}
    return max((RTOL.get(names.get(name, name), 0.0) for name in found), default=0.0)


def _run(session: ort.InferenceSession, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    values = (*session.get_inputs(), *session.get_outputs())
    try:
        if not any(value.type == _BFLOAT16 for value in values):
            results = session.run(None, feeds)
        else:
            results = _run_bfloat16(session, feeds)
    except MirageError:
        raise
    except Exception as error:  # as in _session
        raise MirageError("SESSION_FAILED", _one_line(error)) from error
    return [np.asarray(result) for result in results]


def _run_bfloat16(session: ort.InferenceSession, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """onnxruntime's numpy interface has no bfloat16; its OrtValue has, as raw memory."""
    ort = import_onnxruntime()
    given = {
        name: ort.OrtValue.ortvalue_from_numpy_with_onnx_type(
            x.view(np.uint16), onnx.TensorProto.BFLOAT16
        )
        if x.dtype == ml_dtypes.bfloat16
        else ort.OrtValue.ortvalue_from_numpy(x)
        for name, x in feeds.items()
    }
    results = []
    for value in session.run_with_ort_values(None, given):
        if value.data_type() != _BFLOAT16:
            results.append(value.numpy())
        elif value.device_name() != "cpu":
            raise MirageError("SESSION_FAILED", "a bfloat16 output is not in host memory")
        else:
            shape = value.shape()
            count = int(np.prod(shape, dtype=np.int64))
            memory = (ctypes.c_uint16 * count).from_address(value.data_ptr())
            copy = np.array(memory, np.uint16)
            results.append(copy.view(ml_dtypes.bfloat16).reshape(shape))
    return results
