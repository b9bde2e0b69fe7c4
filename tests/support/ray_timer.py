"""A node's GPU whose times are made up, the same everywhere: what ``ClusterTimer`` has nodes import."""

import pytest
import ray
from fake_gpu import Drawn, FakeGpu

from mirage_onnx.tune import device, machine, measure
from mirage_onnx.tune.machine import Machine

FakeGpu(pytest.MonkeyPatch()).us = Drawn()
machine.present_machine = lambda: Machine("a fake", "0", "0", "0")
device.gpu_id = lambda: ray.get_runtime_context().get_node_id()
GpuBench = measure.GpuBench
