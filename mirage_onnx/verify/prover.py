"""What the search asks about a candidate: is it equal to the region, and safe in floating point?"""

from collections.abc import Callable, Mapping

import numpy as np

from mirage_onnx.errors import Rejection
from mirage_onnx.ir.region import Region
from mirage_onnx.ir.ugraph import KernelParams, UGraph
from mirage_onnx.verify.equivalence import Proof, verify
from mirage_onnx.verify.safety import SafetyCheck

Prove = Callable[[Region, UGraph, tuple[KernelParams, ...]], Proof | Rejection]


def prover(region: Region, weights: Mapping[str, np.ndarray] | None = None) -> Prove:
    """The full check of candidates for ``region``; what is known of it is worked out once.

    ``weights``: ONNX tensor name -> its real values.
    """
    safety = SafetyCheck(region, weights)

    def prove(r: Region, g: UGraph, p: tuple[KernelParams, ...]) -> Proof | Rejection:
        proof = verify(r, g)
        if isinstance(proof, Rejection):
            return proof
        record = safety.check(g, p)
        return record if isinstance(record, Rejection) else proof

    return prove


def structure_prover(region: Region, weights: Mapping[str, np.ndarray] | None = None) -> Prove:
    """The check without rounding, which depends on the sizes: for candidates of a structure."""
    safety = SafetyCheck(region, weights)

    def prove(r: Region, g: UGraph, p: tuple[KernelParams, ...]) -> Proof | Rejection:
        proof = verify(r, g)
        if isinstance(proof, Rejection):
            return proof
        return safety.check_any_numbers(g) or proof

    return prove
