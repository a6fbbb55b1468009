"""Our engine against transformers' own ways to serve a batch: `python3 course.py bench serve` (chapter 7).

`workloads` says who asks for what; `servers` runs a workload on each of the three servers; `measure` has them take
turns and compares what they return; `report` prints; `profile` says where a step's time goes.
"""
