"""Proof that a µGraph computes what its region says, and a record of how it rounds."""
