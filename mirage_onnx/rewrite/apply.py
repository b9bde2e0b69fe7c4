"""From chosen regions to the model: plans, bundle, replacements."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from mirage_onnx.codegen.candidates import Compiled
from mirage_onnx.custom_op.assemble import BundleBuilder
from mirage_onnx.custom_op.bundle import write_bundle
from mirage_onnx.custom_op.launch_plan import Planned
from mirage_onnx.importer import LoadedModel
from mirage_onnx.ir.region import Region
from mirage_onnx.rewrite.model import function_keys, rewrite_model
from mirage_onnx.rewrite.replacement import Replacement, WeightUse
from mirage_onnx.target import Target


def apply(
    loaded: LoadedModel, chosen: Sequence[tuple[Region, Compiled]], target: Target
) -> onnx.ModelProto:
    """The model with one custom node per chosen region instance; ``loaded`` stays as it is."""
    if not chosen:
        return loaded.proto
    # A plan is shared by instances with equal kernels and equal bodies; the digest of the body
    # needs the replacement first, so plans are numbered in a second pass.
    draft = BundleBuilder(target)
    planned = [draft.add(region, compiled, "")[1] for region, compiled in chosen]
    drafts = [_replacement(r, p, 0) for (r, _), p in zip(chosen, planned, strict=True)]
    keys = function_keys(loaded.proto, drafts, loaded.base_dir)
    builder = BundleBuilder(target)
    numbered = [
        _replacement(region, plan, builder.add(region, compiled, key)[0])
        for (region, compiled), plan, key in zip(chosen, planned, keys, strict=True)
    ]
    return rewrite_model(
        loaded.proto,
        numbered,
        write_bundle(builder.bundle()),
        target_suffix=target.suffix,
        base_dir=loaded.base_dir,
    )


def _replacement(region: Region, planned: Planned, plan: int) -> Replacement:
    weights = tuple(
        WeightUse(i.tensor.name, perm)
        for i, perm in zip(region.inputs, planned.permutations, strict=True)
        if perm != tuple(range(len(perm)))
    )
    return Replacement(
        nodes=region.nodes,
        inputs=tuple(i.tensor.name for i in region.inputs),
        weights=weights,
        outputs=tuple(o.tensor.name for o in region.outputs),
        workspace=planned.plan.workspace is not None,
        plan=plan,
    )
