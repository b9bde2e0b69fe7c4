"""Runs mutants of kernels in the emulator and says which of them were noticed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from text_mutants import Mutant

from mirage_onnx.codegen.source import KernelSource
from mirage_onnx.emulator import EmulationError, Module, compile_kernels
from mirage_onnx.emulator.run import Order

#: Mutants of one translation unit: compiling many together costs little more than one.
UNIT = 24
ORDERS: tuple[Order, ...] = ("ascending", "descending")


@dataclass(frozen=True)
class Subject:
    """A correct kernel, what it reads, and what it must write (name -> values, tolerance)."""

    kernel: KernelSource
    tensors: Mapping[str, np.ndarray]
    expected: Mapping[str, np.ndarray]
    tolerance: float

    def wrong(self, got: Mapping[str, np.ndarray]) -> str:
        """The first output that is not what it must be, or nothing."""
        for name, want in self.expected.items():
            have = got[name].astype(np.float64)
            scale = float(np.abs(want).max(initial=0.0)) or 1.0
            if not (np.abs(have - want) <= self.tolerance * scale).all():
                return f"output {name}"
        return ""


def noticed(
    subject: Subject, mutants: Sequence[Mutant], timeout_s: int = 2
) -> list[tuple[Mutant, str]]:
    """Mutants that compile, with the kind of error or the wrong output; "" where one survives."""
    found: list[tuple[Mutant, str]] = []
    for start in range(0, len(mutants), UNIT):
        found += _unit(subject, mutants[start : start + UNIT], timeout_s)
    return found


def _unit(subject: Subject, mutants: Sequence[Mutant], timeout_s: int) -> list[tuple[Mutant, str]]:
    try:
        module = compile_kernels([m.source for m in mutants])
    except EmulationError:  # a mistake that g++ finds is none of ours
        if len(mutants) == 1:
            return []
        half = len(mutants) // 2
        first = _unit(subject, mutants[:half], timeout_s)
        return first + _unit(subject, mutants[half:], timeout_s)
    return [(m, _run(module, i, subject, timeout_s)) for i, m in enumerate(mutants)]


def _run(module: Module, index: int, subject: Subject, timeout_s: int) -> str:
    for order in ORDERS:
        tensors = {name: array.copy() for name, array in subject.tensors.items()}
        try:
            module.run(tensors, [index], order=order, timeout_s=timeout_s)
        except EmulationError as error:
            return getattr(error, "kind", "") or str(error)
        if wrong := subject.wrong(tensors):
            return wrong
    return ""
