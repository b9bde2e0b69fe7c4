"""A second look at the fastest program on the GPU: the same µGraph with other numbers.

The cost model of tiled kernels ranks numbers only roughly. Of 1021 tiled kernels, timed cold on an
H200 (49 kernels of golden programs and of two cases of the speed table, up to 40 sets of numbers
each; bench/results/h200/tiled_sweep.json.xz), the model's first choice took 1.30 times as long as
the fastest (geometric mean, at worst 2.4 times), the best of its first eight 1.03 times. So the
kernel that is predicted to take longest gets more of its numbers tried: first the best for each
number of warps and length of a step, then the others.
"""

from dataclasses import replace

from mirage_onnx.ir.region import Region
from mirage_onnx.ir.ugraph import Candidate, KernelParams, ugraph_extents
from mirage_onnx.superopt.thread import Family, assign_layouts
from mirage_onnx.superopt.tiled_numbers import solve_tiled, tiled_cost
from mirage_onnx.target import Target

#: Points of the model that are looked at, and what is passed over: so many times the best.
LOOKED_AT, FAR = 2000, 2.0


def other_numbers(
    region: Region, candidate: Candidate, target: Target, count: int
) -> tuple[Candidate, ...]:
    """At most ``count`` candidates of the same µGraph; none where no kernel is a tiled one.

    A µGraph is proven for all numbers, so these need no proof of their own.
    """
    graph = candidate.ugraph
    tensors = {t.name: t for t in graph.tensors}
    extents = ugraph_extents(graph, candidate.params, region.extents)
    costs_us: dict[int, float] = {}
    for n, (kernel, params) in enumerate(zip(graph.kernels, candidate.params, strict=True)):
        if assign_layouts(kernel, tensors, tiled=True)[0] is Family.TILED:
            cost = tiled_cost(kernel, tensors, extents, params, target)
            costs_us[n] = cost.time_us if cost is not None else 0.0
    if not costs_us:
        return ()
    at = max(costs_us, key=lambda n: (costs_us[n], -n))
    points = solve_tiled(graph.kernels[at], tensors, extents, target, keep=LOOKED_AT)
    near = [(c.time_us, p) for c, p in points if c.time_us <= FAR * points[0][0].time_us]
    seen = set[tuple[int, int]]()
    firsts, others = list[tuple[float, KernelParams]](), list[tuple[float, KernelParams]]()
    for time_us, params in near:
        if params == candidate.params[at]:
            continue
        kind = (params.warps, params.loop_tile)
        (others if kind in seen else firsts).append((time_us, params))
        seen.add(kind)
    return tuple(
        replace(
            candidate,
            params=(*candidate.params[:at], params, *candidate.params[at + 1 :]),
            predicted_us=candidate.predicted_us - costs_us[at] + time_us,
        )
        for time_us, params in [*firsts, *others][:count]
    )
