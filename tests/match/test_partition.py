"""The choice of regions equals the best of all choices, and respects who else reads a value."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import Net

from mirage_onnx.importer import import_model, load_model
from mirage_onnx.ir.program import Program
from mirage_onnx.match.cuts import Candidate, find_candidates
from mirage_onnx.match.partition import choose


def gone(program: Program, used: Sequence[Candidate]) -> set[str]:
    """Nodes that nobody needs when ``used`` are replaced (the greatest such set)."""
    yielded = {o for c in used for o in c.outputs}
    read = {i.tensor.name for c in used for i in c.region.inputs}
    readers = program.consumers()
    found = {n for c in used for n in c.nodes}
    while True:
        needed = {
            n.name
            for n in program.nodes
            if n.name in found
            for o in n.outputs
            if o not in yielded
            and (o in program.outputs or o in read or set(readers.get(o, ())) - found)
        }
        if not needed:
            return found
        found -= needed


def gain(
    program: Program, used: Sequence[int], all_: Sequence[Candidate], times: Sequence[float],
    node_us: Mapping[str, float],
) -> float | None:  # fmt: skip
    """Microseconds saved, or None for a choice that yields a tensor twice."""
    picked = [all_[i] for i in used]
    outputs = [o for c in picked for o in c.outputs]
    if len(outputs) != len(set(outputs)):
        return None
    saved = sum(node_us[n] for n in gone(program, picked))
    return saved - sum(times[i] for i in used)


def random_program(pick: random.Random) -> Program:
    net = Net()
    values = [net.input(8, 64), net.input(8, 64)]
    for _ in range(pick.randint(3, 7)):
        x, y = pick.choice(values[-3:]), pick.choice(values)
        op, arity = pick.choice([("Add", 2), ("Mul", 2), ("Exp", 1), ("Tanh", 1)])
        values.append(getattr(net, op)(*(x, y)[:arity]))
    read = {i for n in net.nodes for i in n.input}
    outputs = [n.output[0] for n in net.nodes if n.output[0] not in read]
    outputs += [pick.choice([n.output[0] for n in net.nodes])]
    return import_model(load_model(net.model(*dict.fromkeys(outputs))))


@settings(max_examples=60)
@given(st.integers(0, 10**6))
def test_best_of_all_choices(seed: int) -> None:
    pick = random.Random(seed)
    program = random_program(pick)
    found = list(find_candidates(program).candidates)
    some = pick.sample(found, min(len(found), 8))
    times = [pick.randint(1, 60) / 4 for _ in some]
    node_us = {n.name: pick.randint(0, 20) / 2 for n in program.nodes}
    chosen = choose(program, some, times, node_us)
    best = max(
        g
        for count in range(len(some) + 1)
        for used in combinations(range(len(some)), count)
        if (g := gain(program, used, some, times, node_us)) is not None
    )
    got = gain(program, chosen, some, times, node_us)
    assert got == pytest.approx(best, abs=0.05)


def chain() -> tuple[Program, list[Candidate]]:
    net = Net()
    y = net.Mul(net.Exp(net.Add(net.input(8, 64), net.input(8, 64))), 2.0)
    program = import_model(load_model(net.model(y)))
    return program, list(find_candidates(program).candidates)


def test_nothing_to_choose_from() -> None:
    program, _ = chain()
    assert choose(program, [], [], {}) == ()


def test_a_loss_is_not_chosen() -> None:
    program, found = chain()
    node_us = {n.name: 1.0 for n in program.nodes}
    assert choose(program, found, [100.0] * len(found), node_us) == ()
    assert choose(program, found, [0.1] * len(found), node_us) != ()


def test_of_equal_gains_the_fewer_nodes() -> None:
    program, found = chain()
    whole = next(c for c in found if len(c.nodes) == 3)
    node_us = {n.name: 1.0 for n in program.nodes}
    assert choose(program, [whole, whole], [1.0, 1.0], node_us) in ((0,), (1,))


def test_a_value_needed_elsewhere_keeps_its_node() -> None:
    """The first node's result is also read by a barrier: its time is not saved."""
    net = Net()
    total = net.Add(net.input(8, 64), net.input(8, 64))
    y = net.Mul(net.Exp(total), 2.0)
    other = net.Gather(total, [0])
    program = import_model(load_model(net.model(y, other)))
    whole = [c for c in find_candidates(program).candidates if c.outputs == {y}]
    whole = [max(whole, key=lambda c: len(c.nodes))]
    assert len(whole[0].nodes) == 3
    add, *rest = (n.name for n in program.nodes)
    node_us = {add: 100.0, **dict.fromkeys(rest, 1.0)}
    assert choose(program, whole, [1.5], node_us) == (0,)
    assert choose(program, whole, [2.5], node_us) == ()


def test_a_value_that_a_region_reads_keeps_its_node() -> None:
    """Two regions share a stage: the one that does not recompute it must still find its value."""
    net = Net()
    total = net.Add(net.input(8, 64), net.input(8, 64))
    a, b = net.Mul(net.Exp(total), 2.0), net.Mul(net.Tanh(total), 2.0)
    program = import_model(load_model(net.model(a, b)))
    found = find_candidates(program).candidates
    with_add = next(c for c in found if c.outputs == {a} and len(c.nodes) == 3)
    without = next(c for c in found if c.outputs == {b} and len(c.nodes) == 2)
    add, *rest = (n.name for n in program.nodes)
    node_us = {add: 100.0, **dict.fromkeys(rest, 1.0)}
    assert choose(program, [with_add, without], [5.0, 0.5], node_us) == (1,)


def test_overlapping_regions_save_the_shared_stage_together() -> None:
    net = Net()
    total = net.Add(net.input(8, 64), net.input(8, 64))
    a, b = net.Mul(net.Exp(total), 2.0), net.Mul(net.Tanh(total), 2.0)
    program = import_model(load_model(net.model(a, b)))
    found = [c for c in find_candidates(program).candidates if len(c.nodes) == 3]
    found = [c for c in found if len(c.outputs) == 1]
    node_us = {n.name: 4.0 for n in program.nodes}
    assert [c.outputs for c in found] == [{a}, {b}]
    # each alone loses (5 > 4 + 4 is false, but 9 > 8), both together win 20 - 18
    assert choose(program, found, [9.0, 9.0], node_us) == (0, 1)
    assert choose(program, found[:1], [9.0], node_us) == ()


def test_two_regions_that_would_need_each_other() -> None:
    """Both may be replaced, but not both: each yields what the other reads."""
    net = Net()
    x = [net.input(8, 64) for _ in range(8)]

    def stage(op: str, i: int) -> str:
        return getattr(net, op)(net.Add(net.Mul(x[i], x[i + 1]), net.Mul(x[i + 2], x[i + 3])))

    p, r = stage("Tanh", 0), stage("Exp", 4)
    q, s = net.Mul(p, net.Exp(r)), net.Add(p, net.Tanh(r))
    program = import_model(load_model(net.model(q, s)))
    found = find_candidates(program).candidates
    by_outputs = {c.outputs: c for c in found}
    both = [by_outputs[frozenset({p, q})], by_outputs[frozenset({r, s})]]
    node_us = {n.name: 4.0 for n in program.nodes}
    assert len(choose(program, both, [1.0, 1.0], node_us)) == 1
    chosen = choose(program, found, [1.0] * len(found), node_us)
    assert not {frozenset({p, q}), frozenset({r, s})} <= {found[i].outputs for i in chosen}
