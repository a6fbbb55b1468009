"""Benchmarks of the reference implementation, and their recorded results: `python3 course.py bench NAME`."""
