"""Choosing between candidates and ONNX Runtime: a measured table without a GPU, timing with one."""
