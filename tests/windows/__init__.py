"""Promises of the windows: what the model is shown of a log, and what that costs.

============  ==================================================================================
`model`       what each window shows, computed from scratch: the judge of the differential tests
`saying`      messages, views and counters in a few words
`histories`   strategies: messages, windows, and what happens to a log
`watching`    a store that tells what was read and written
============  ==================================================================================
"""
