"""What a region would take op by op: the baseline that a found program has to beat on paper.

Every step that computes is a kernel of its own, at the rates of ``superopt/cost.py``:

    time_us = launch + max(work + ramp, one dependent trip to memory)
    work    = max(bytes / stream rate, flops / mma rate),  ramp = min(ramp of the target, work / 4)

The baseline flatters: casts and changes of layout cost nothing, a value is written once, in the
narrowest type that anybody reads it in, contractions reach the whole rate of the tensor cores (a
found kernel is credited with half), arithmetic is free. L2 is not modelled, on either side.
"""

from collections import defaultdict
from math import prod

from mirage_onnx.superopt.cost import LATENCY_US

#: Steps that a framework fuses into what is before or behind them.
FREE = frozenset({"cast", "transpose", "reshape", "expand"})


def op_by_op_us(region, target):
    """Predicted microseconds of the steps of ``region``, each one a kernel.

    Raises:
        ValueError: the extents are not those of the recorded shapes, which say what steps move.
    """
    return sum(us for _, us in step_times_us(region, target))


def step_times_us(region, target):
    _check_sizes(region)
    tensors = {i.tensor.name: i.tensor for i in region.inputs}
    tensors |= {s.output.name: s.output for s in region.steps}
    roots = _roots(region, tensors)
    sizes = _stored_bytes(region, tensors, roots)
    found = []
    for step in region.steps:
        if step.op in FREE:
            continue
        read = {roots[i] for i in step.inputs if isinstance(i, str) and i in roots}
        moved = sum(sizes[i] for i in read) + sizes[step.output.name]
        found.append((step, kernel_us(moved, _flops(step, tensors), target)))
    return tuple(found)


def kernel_us(moved_bytes, flops, target):
    stream_us = moved_bytes / (target.stream_tbps * 1e6)
    mma_us = flops / (target.mma_tflops * 1e6)
    work_us = max(stream_us, mma_us)
    ramp_us = min(target.ramp_us, 0.25 * work_us)
    return target.launch_us + max(work_us + ramp_us, LATENCY_US)


def _roots(region, tensors):
    """Tensor -> the one that holds its elements: what free steps make is in no memory."""
    roots = {name: name for name in tensors}
    for step in region.steps:
        if step.op in FREE:
            source = step.inputs[0]
            # A step on a constant has no tensor to read.
            if isinstance(source, str) and source in roots:
                roots[step.output.name] = roots[source]
    return roots


def _stored_bytes(region, tensors, roots):
    outputs = {o.tensor.name for o in region.outputs}
    readers = [s for s in region.steps if s.op not in FREE]
    used = outputs | {i for s in readers for i in s.inputs if isinstance(i, str)}
    widths = defaultdict(list)
    for name in tensors:
        if name in used:
            widths[roots[name]].append(_width(tensors[name]))
    inputs = {i.tensor.name for i in region.inputs}
    found = {}
    for root in dict.fromkeys(roots.values()):
        # An input is stored as it comes; what nobody reads was written as it is.
        narrow = root not in inputs and root in widths
        width = min(widths[root]) if narrow else _width(tensors[root])
        found[root] = _elements(tensors[root]) * width
    return found


def _flops(step, tensors):
    if step.op != "matmul":
        return 0
    left = tensors[str(step.inputs[0])]
    assert left.shape is not None
    return 2 * _elements(step.output) * int(left.shape[-1])


def _elements(tensor):
    assert tensor.shape is not None
    return prod(int(d) for d in tensor.shape)


def _width(tensor):
    return tensor.dtype.size_bytes


def _check_sizes(region):
    for x in (*region.inputs, *region.outputs):
        named = prod(region.extents[a] for a in x.axes)
        if named != _elements(x.tensor):
            raise ValueError(f"{x.tensor.name} of shape {x.tensor.shape} has {named} elements")
