"""Load benchmarks of conversation memories: this package's and any other's, each checked for what it kept.

`turnkeeper bench` is the way in; docs/benchmarks.md says how to add a subject or a workload. Nothing is imported from
here by the runtime.
"""
