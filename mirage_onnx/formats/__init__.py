"""µGraphs in other programs' files."""
