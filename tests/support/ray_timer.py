"""A node's GPU whose times are made up, the same everywhere: what ``ClusterTimer`` has nodes import."""

import pytest
from fake_gpu import Drawn, FakeGpu

from mirage_onnx.tune import machine, measure
from mirage_onnx.tune.machine import Machine

FakeGpu(pytest.MonkeyPatch()).us = Drawn()
machine.present_machine = lambda: Machine("a fake", "0", "0", "0")
GpuBench = measure.GpuBench
