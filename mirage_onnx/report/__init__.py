"""What a run tells its user: the JSON report, the tables and the log."""
