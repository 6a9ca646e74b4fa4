"""Everything that happens to one memory, at random, against a simple model on every backend.

Item 4 of issue 5, and item 8 of issue 6.

==============  ========================================================================
`states`        what a memory is, and what a request leads to: pure, as all of the model
`writes`        the model of what is written from outside a turn
`turns`         the model of turns
`revisions`     the model of what takes back, changes, forks and prunes what was said
`compactions`   the model of compactions, and of the policy that asks for them
`views`         the model of what a window shows
`operations`    a request of ours on its way, and what may go wrong with it
`witness`       the store, which remembers what was really committed
`versions`      which row in the store is which of the model's
`lifetime`      a runtime that is opened, closed and opened again
`driver`        does to a runtime what it is told, and holds what came of it against the model
`actions`       what can be done outside of and within turns
`summaries`     what can be done about compactions, ours and the policy's
`logbook`       what can be done with the log: looking back, watching, forking, pruning
`choices`       the strategies: messages, windows, what goes wrong
`machine`       the hypothesis machine: a rule for each action
`logmachine`    the rules about the log
`test_machine`  runs it on every event loop and store
`test_found`    what it found
==============  ========================================================================

One more request takes a function in `writes` that says what it leads to, and a rule in `machine` that sends it::

    @rule(count=st.integers(1, 3), disturbance=disturbances)
    def undo(self, count: int, disturbance: Disturbance) -> None:
        self._write(f"undo {count}", lambda memory: memory.undo(count), partial(undo, count=count), disturbance)

One more way of looking takes a line in `driver.Driver.look`.
"""
