"""More numbers of a measured program."""

from dataclasses import replace

from golden_graphs import golden_graph
from search_programs import PROGRAMS

from mirage_onnx.codegen.candidates import emit_candidate
from mirage_onnx.errors import RejectionError
from mirage_onnx.ir.ugraph import Candidate
from mirage_onnx.superopt.numbers import solve
from mirage_onnx.superopt.tiled_numbers import solve_tiled
from mirage_onnx.target import H200
from mirage_onnx.tune.refine import FAR, other_numbers

REGION = PROGRAMS["lora_two_adapters"]()


def candidate():
    """Two tiled kernels, of which the second reads the weights."""
    graph = golden_graph("lora_two_adapters")
    tensors = {t.name: t for t in graph.tensors}
    best = [solve_tiled(k, tensors, REGION.extents, H200, keep=1)[0] for k in graph.kernels]
    return Candidate(graph, tuple(p for _, p in best), sum(c.time_us for c, _ in best))


def test_the_longest_kernel_gets_other_numbers():
    first = candidate()
    found = other_numbers(REGION, first, H200, 24)
    assert len({c.params for c in found}) == len(found) == 24
    assert {c.params[0] for c in found} == {first.params[0]}
    assert first.params[1] not in {c.params[1] for c in found}
    kinds = [(c.params[1].warps, c.params[1].loop_tile) for c in found]
    distinct = len(set(kinds))
    assert distinct > 8 and len(set(kinds[:distinct])) == distinct
    assert [c.predicted_us for c in found[:distinct]] == sorted(
        c.predicted_us for c in found[:distinct]
    )
    assert all(first.predicted_us <= c.predicted_us <= FAR * first.predicted_us for c in found)


def test_most_of_them_have_kernels():
    def emits(c):
        try:
            return bool(emit_candidate(c, REGION.extents, H200, "k"))
        except RejectionError:
            return False

    found = other_numbers(REGION, candidate(), H200, 12)
    assert sum(map(emits, found)) >= 9


def test_none_without_a_tiled_kernel():
    region = PROGRAMS["residual_rmsnorm"]()
    graph = golden_graph("residual_rmsnorm")
    tensors = {t.name: t for t in graph.tensors}
    params = tuple(solve(k, tensors, region.extents, H200, keep=1)[0][1] for k in graph.kernels)
    assert other_numbers(region, Candidate(graph, params), H200, 8) == ()
    assert other_numbers(REGION, replace(candidate()), H200, 0) == ()
