"""The real weights of a region, for the numeric checks: N(0,1) does not stand for a scale of 30."""

from __future__ import annotations

import numpy as np

from mirage_onnx.importer import LoadedModel
from mirage_onnx.importer.constants import constant_values
from mirage_onnx.ir.region import Region


def sample_weights(loaded: LoadedModel, region: Region) -> dict[str, np.ndarray]:
    """ONNX tensor name -> values, for every weight that ``region`` reads."""
    wanted = [i.tensor.name for i in region.inputs if i.is_weight]
    values = constant_values(loaded) if wanted else {}
    return {name: loaded.read(values[name]) for name in wanted if name in values}
