"""Item 4 of issue 5: everything that happens to one memory, at random, against a simple model on every backend.

=============  ========================================================================
`model`        what a memory is: pure, nothing shared with the library
`driver`       does to a runtime what the machine says, and compares
`test_machine` the hypothesis machine, on every event loop and store
=============  ========================================================================
"""
