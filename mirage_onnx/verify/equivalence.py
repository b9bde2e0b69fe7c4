"""Does a µGraph compute what its region says? A random test in Z_p with a stated error bound.

Region and µGraph are run on the same uniform residues at a reduced instantiation (``reduced``),
where every split of the µGraph is exercised. A program that is equal as a rational expression over
the random functions agrees in every draw. One that is not is accepted with probability at most
``miss_probability`` per draw (derived in ``bounds``), independently; draws are added until the
product is below ``ACCEPTED_RISK``. See docs/verification.md for what the test does not see.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, log

import numpy as np

from mirage_onnx.errors import Rejection, RejectionError
from mirage_onnx.ir.region import Region, RegionTensor
from mirage_onnx.ir.ugraph import UGraph
from mirage_onnx.verify.bounds import miss_probability, term_bound, ugraph_bounds
from mirage_onnx.verify.domain import Field, Float64
from mirage_onnx.verify.field import VOID
from mirage_onnx.verify.interpret_steps import by_axes, interpret_steps, positional
from mirage_onnx.verify.interpret_term import interpret_terms
from mirage_onnx.verify.interpret_ugraph import interpret_ugraph
from mirage_onnx.verify.named import Named
from mirage_onnx.verify.reduced import Instantiation, reduced_instantiation, small_extents
from mirage_onnx.verify.wellformed import check_interface, check_ugraph

DRAWS, MOST_DRAWS = 3, 8
#: A valid element must be seen in this many draws.
LEAST_VALID = 2
ACCEPTED_RISK = 1e-9
#: Terms and steps are the same mathematics in float64, in another order.
TERM_TOLERANCE = 1e-9
#: Relative to the largest value of the steps: below this, a result is rounding noise.
ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class Proof:
    """Equivalence was tested in ``draws`` draws; a false accept has probability <= ``bound``."""

    draws: int
    bound: float
    instantiation: str


def verify(region: Region, graph: UGraph, *, seed: int = 0) -> Proof | Rejection:
    """A proof that ``graph`` computes the terms of ``region``, or why there is none."""
    refused = check_ugraph(graph) or check_interface(region, graph)
    if refused:
        return refused
    try:
        sizes = reduced_instantiation(graph, region.extents)
        return _test(region, graph, sizes, seed)
    except RejectionError as e:
        return e.rejection
    except ValueError as e:
        return Rejection("NOT_EQUIVALENT", f"ill-formed: {e}")


def _test(region: Region, graph: UGraph, sizes: Instantiation, seed: int) -> Proof | Rejection:
    theirs = ugraph_bounds(graph, sizes.params, sizes.extents)
    risk = max(
        miss_probability(term_bound(t, sizes.extents), theirs[o.name])
        for o, t in zip(region.outputs, region.terms, strict=True)
    )
    needed = ceil(log(ACCEPTED_RISK) / log(risk)) if 0 < risk < 1 else 1 if risk <= 0 else DRAWS
    draws = max(DRAWS, needed)
    if risk >= 1 or draws > MOST_DRAWS:
        reason = f"the degrees are too high: one draw may miss a difference with chance {risk:.1e}"
        return Rejection("INCONCLUSIVE", reason)
    rng = np.random.default_rng([seed, 0x6D7567])
    domain = Field(draws, rng)
    inputs = {
        i.name: Named(domain.random(rng, tuple(sizes.extents[a] for a in i.axes)), i.axes)
        for i in region.inputs
    }
    want = interpret_terms(domain, region.terms, inputs, sizes.extents)
    got = interpret_ugraph(domain, graph, sizes.params, sizes.extents, inputs)
    valid = draws
    for output, reference in zip(region.outputs, want, strict=True):
        x = _full(reference, output, sizes.extents)
        y = got[output.name].aligned(output.axes)
        compared = (x != VOID) & (y != VOID)
        if (wrong := compared & (x != y)).any():
            return Rejection("NOT_EQUIVALENT", _counterexample(output, wrong, x, y, sizes))
        valid = min(valid, int(compared.sum(axis=0).min()))
    if valid < LEAST_VALID or risk**valid > ACCEPTED_RISK:
        reason = f"an output element exists in only {valid} of {draws} draws"
        return Rejection("INCONCLUSIVE", f"{reason}; {sizes.to_text()}")
    return Proof(valid, risk**valid, sizes.to_text())


def _full(value: Named, output: RegionTensor, extents: Mapping[str, int]) -> np.ndarray:
    """[run, *output.axes]; a term may vary over fewer axes than its tensor."""
    data = value.aligned(output.axes)
    return np.broadcast_to(data, (data.shape[0], *(extents[a] for a in output.axes)))


def _counterexample(
    output: RegionTensor, wrong: np.ndarray, x: np.ndarray, y: np.ndarray, sizes: Instantiation
) -> str:
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    place = ", ".join(f"{a}={i}" for a, i in zip(output.axes, at[1:], strict=True))
    share = f"{int(wrong.sum())} of {wrong.size} values differ"
    return (
        f"output {output.name}[{place}] is {int(y[at])} and should be {int(x[at])} in the field; "
        f"{share}; {sizes.to_text()}"
    )


def check_terms(region: Region, rng: np.random.Generator) -> Rejection | None:
    """None if the terms of a region compute its steps, in float64 at small different extents."""
    try:
        extents = small_extents(region.extents, {})
        seen = set[str]()
        for positive in (False, True):
            inputs = {}
            for i in region.inputs:
                data = rng.standard_normal([extents[a] for a in i.axes])
                inputs[i.name] = abs(data) + 0.5 if positive else data
            arrays = {i.tensor.name: positional(i, inputs[i.name]) for i in region.inputs}
            want = interpret_steps(region, arrays, rounded=False)
            largest = max(float(np.abs(v[np.isfinite(v)]).max(initial=0.0)) for v in want.values())
            named = {i.name: Named(inputs[i.name][None], i.axes) for i in region.inputs}
            got = interpret_terms(Float64(), region.terms, named, extents)
            for output, value in zip(region.outputs, got, strict=True):
                x = by_axes(output, want[output.tensor.name], extents)
                y = _full(value, output, extents)[0]
                defined = np.isfinite(x)
                if not defined.all() and not positive:
                    continue
                seen.add(output.name)
                # Where everything cancels (the mean of x - mean(x)), what is left of the steps is
                # float64's own rounding of their largest value.
                rounding = ROUNDING * largest * np.sqrt(x.size)
                norm = max(float(np.linalg.norm(x[defined])), float(rounding), 1e-300)
                error = float(np.linalg.norm(x[defined] - y[defined])) / norm
                if not error < TERM_TOLERANCE:
                    reason = f"the terms of {output.name} differ from its steps by {error:.1e}"
                    return Rejection("NOT_EQUIVALENT", reason, region.nodes)
                if not defined.any():
                    reason = f"the steps of {output.name} have no finite value"
                    return Rejection("INCONCLUSIVE", reason, region.nodes)
    except RejectionError as e:
        return e.rejection
    except (ValueError, KeyError) as e:
        return Rejection("NOT_EQUIVALENT", f"the steps cannot be run: {e}", region.nodes)
    return None
