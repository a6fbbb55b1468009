"""Our engine compared with transformers' own ways to serve a batch: `python3 course.py bench serve` (chapter 7).

`workloads` defines the requests; `servers` runs a workload on each of the three servers; `measure` runs the servers in
turns and compares their results; `report` formats the tables; `profile` measures where a step's time goes.
"""
