"""The times and states of searches against the bound, with and without each pruning."""
