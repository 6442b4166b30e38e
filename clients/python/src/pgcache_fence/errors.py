"""The exceptions that the library raises. Each message says what to do."""


class FenceError(Exception):
    """All errors of this library."""


class WrongUse(FenceError):
    """The program must be changed: a client that would break the protocol, a domain that does not exist, and the like."""


class WrongKey(WrongUse, ValueError):
    """The value cannot be a key of the domain."""
