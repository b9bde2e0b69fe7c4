"""Which axioms the best program of a search needs: without them it is not found.

``python bench/axioms.py`` prints the whole table.
"""

from functools import cache

from search_programs import PROGRAMS
from small_models import search_region

from mirage_onnx.superopt.axioms import AXIOMS
from mirage_onnx.superopt.canonical import canonical_kernel
from mirage_onnx.superopt.space import ALL

#: Of predicted times: what differs by less is equal.
TOLERANCE = 1e-9


def canonical_program(graph):
    """The text of a µGraph modulo what the search treats as one step."""
    return "".join(canonical_kernel(k, graph.tensors) for k in graph.kernels)


@cache
def searched(name, without=""):
    """The result for a program of ``search_programs``, with all axioms but one."""
    axioms = tuple(a for a in AXIOMS if a.name != without)
    assert len(axioms) == len(AXIOMS) - bool(without), f"there is no axiom {without}"
    return search_region(PROGRAMS[name](), space=ALL, axioms=axioms, budget_s=120.0)


def best_us(result):
    """The predicted time of the best candidate; infinite without any."""
    times = [v.candidate.predicted_us for v in result.candidates]
    return min(times, default=float("inf"))


def is_found(graph, result):
    """Whether a candidate is this program, whatever its elementwise operations look like."""
    wanted = canonical_program(graph)
    return any(canonical_program(v.candidate.ugraph) == wanted for v in result.candidates)


def needs(name, axiom):
    """Whether the best program is not found without ``axiom``, and nothing as fast is."""
    best, less = searched(name), searched(name, axiom)
    graph = best.candidates[0].candidate.ugraph
    return not is_found(graph, less) and best_us(less) > best_us(best) * (1 + TOLERANCE)


def needed(name):
    """The axioms that the best program needs, in the order of the table."""
    return tuple(a.name for a in AXIOMS if needs(name, a.name))
