"""Promises to those who come from elsewhere: what other systems do as data, replayed through our runtime.

`vectors` reads the data, `translating` turns it into our messages, `outcomes` says what we show where that is not what
the other system shows, `classes` gives each vector its class by rules, `replaying` runs one through handle, actor and
store, `naming` one through LangChain4j's names, `compacting` one about a log, `serving` stands in for what is above a
memory, `report` writes docs/conformance.md.
"""
