"""What ``bench/coverage.py`` computes and prints."""
