"""Promises of compaction: a summary takes the place of exactly what it saw, or nothing changes.

=================  ==============================================================================
`summing`          summarisers that stop, fail and take notes; conversations in a few words
`test_replacing`   what is replaced, what stays, when it is abandoned
`test_cutting`     where a log is cut
`test_failing`     summarisers and stores that fail, callers that leave
`test_threads`     blocking summarisers: so many threads, and nobody waits for one that hangs
`test_policy`      compaction by itself: when, how often, how many at once
`test_showing`     the summary in every window, in RAM and from the store
`test_turns`       compaction and turns
`test_sharing`     two runtimes on one file
`test_blocking`    blocking code
`test_model`       random logs and cuts against a definition
`test_reports`     the rows of FIELD.md
=================  ==============================================================================
"""
