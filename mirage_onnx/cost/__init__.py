"""What a kernel takes: one estimate per kind of kernel, of what its lowering makes of its numbers."""
