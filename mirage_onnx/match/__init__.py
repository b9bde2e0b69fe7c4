"""Regions: which sets of ONNX nodes to offer to the search, and which of them to replace."""
