"""Tools for the tests; nothing here is shipped.

================  ==========================================================================
`backends`        what each `anyio_backend` id runs on
`virtual_time`    backends on which an hour passes in no time
`schedule`        cancel at every point of a coroutine; a gate tasks and threads stop at
`loop_guard`      pytest plugin: a test that blocks its event loop fails
`time_limit`      pytest plugin: a test that hangs fails, with the stacks of everything
`loops`           what differs between asyncio and trio for these tools
`async_items`     how the two plugins get into the event loop of a test
`stacks`          threads and tasks as text
`imports`         who imports whom, read from the source
================  ==========================================================================

In a test: `from support.schedule import Gate, cancel_at, count_points`.
"""
