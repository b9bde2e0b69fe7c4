"""The two immutable IRs (Program/Region and UGraph) and their canonical text forms."""
