"""From chosen regions to a bundle: emit, compile, plan, and number the plans.

Regions of one key share kernels; a plan is shared by the instances whose function bodies agree too
(the rewriter tells by a digest of the body).
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mirage_onnx.codegen import GENERATOR_VERSION, KernelSource, compile_many, emit_kernel
from mirage_onnx.codegen.compile import Cubin
from mirage_onnx.custom_op.bundle import Bundle
from mirage_onnx.custom_op.launch_plan import Planned, plan_candidate
from mirage_onnx.errors import Rejection, RejectionError
from mirage_onnx.ir.region import Region
from mirage_onnx.ir.text import print_ugraph
from mirage_onnx.ir.ugraph import Candidate
from mirage_onnx.target import Target


@dataclass(frozen=True, slots=True)
class Compiled:
    """A candidate with the text and image of each of its kernels."""

    candidate: Candidate
    sources: tuple[KernelSource, ...]
    cubins: tuple[Cubin, ...]


def emit_candidate(
    candidate: Candidate, extents: Mapping[str, int], target: Target, name: str
) -> tuple[KernelSource, ...]:
    """The CUDA text of each kernel; kernel names begin with ``name``.

    Raises:
        RejectionError: EMIT_UNSUPPORTED, LAYOUT or SMEM.
    """
    from dataclasses import replace

    graph = candidate.ugraph
    return tuple(
        emit_kernel(graph, replace(k, name=f"{name}_{k.name}"), p, extents, target)
        for k, p in zip(graph.kernels, candidate.params, strict=True)
    )


def compile_candidates(
    region: Region, candidates: Sequence[Candidate], target: Target, *, keep: int, workers: int = 1
) -> tuple[list[Compiled], list[Rejection]]:
    """The first ``keep`` candidates that the code generator and NVRTC accept, and the refusals."""
    done: list[Compiled] = []
    refused: list[Rejection] = []
    for candidate in candidates:
        if len(done) == keep:
            break
        try:
            sources = emit_candidate(candidate, region.extents, target, f"mugraph_{region.key}")
        except RejectionError as error:
            refused.append(error.rejection)
            continue
        images = compile_many(sources, target, workers)
        bad = [i for i in images if isinstance(i, Rejection)]
        if bad:
            refused.append(bad[0])
            continue
        cubins = tuple(i for i in images if isinstance(i, Cubin))
        done.append(Compiled(candidate, sources, cubins))
    return done, refused


class BundleBuilder:
    """Collects cubins and plans; equal ones are stored once."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._cubins: dict[bytes, int] = {}
        self._plans: dict[tuple[str, str], int] = {}
        self._provenance: list[dict[str, object]] = []

    def add(self, region: Region, compiled: Compiled, body_key: str) -> tuple[int, Planned]:
        """The number of the plan of this region instance, and the plan."""
        ids = [self._cubins.setdefault(c.image, len(self._cubins)) for c in compiled.cubins]
        planned = plan_candidate(region, compiled.candidate.ugraph, compiled.sources, ids)
        text = planned.plan.to_text()
        key = (text, body_key)
        if key not in self._plans:
            self._plans[key] = len(self._plans)
            self._provenance.append(
                {
                    "region": region.text,
                    "ugraph": print_ugraph(compiled.candidate.ugraph),
                    "params": [p.to_text() for p in compiled.candidate.params],
                    "generator": GENERATOR_VERSION,
                    "target": self._target.name,
                    "kernels": [
                        {"name": s.name, "crc32": zlib.crc32(s.text.encode())}
                        for s in compiled.sources
                    ],
                }
            )
        return self._plans[key], planned

    def bundle(self) -> Bundle:
        plans = sorted(self._plans.items(), key=lambda p: p[1])
        return Bundle(tuple(self._cubins), tuple(t for (t, _), _ in plans), tuple(self._provenance))
