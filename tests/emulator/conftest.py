"""A test file's ``KERNELS``, compiled together and run in both orders of threads."""

from __future__ import annotations

import numpy as np
import pytest

from mirage_onnx import emulator
from mirage_onnx.emulator import Module
from mirage_onnx.emulator.run import Order
from tests.emulator.kernels import Run


@pytest.fixture(scope="module")
def module(request: pytest.FixtureRequest) -> Module:
    return emulator.compile_kernels(request.module.KERNELS)


@pytest.fixture(params=["ascending", "descending"])
def run(module: Module, request: pytest.FixtureRequest) -> Run:
    order: Order = request.param
    names = [kernel.name for kernel in request.module.KERNELS]

    def go(*kernels: str, **tensors: np.ndarray) -> None:
        module.run(tensors, [names.index(k) for k in kernels], order=order, timeout_s=1)

    return go
