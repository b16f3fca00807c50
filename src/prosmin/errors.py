"""The errors a user can meet: one sentence that says what was received, what is allowed and what to do."""


class ProsminError(Exception):
    """Something a user can mend. The command prints the sentence and leaves with `exit_status`."""

    exit_status = 1


class UsageError(ProsminError):
    """A wrong option, field or name: wrong use of the command."""

    exit_status = 2


class Stopped(ProsminError):  # noqa: N818  (no error: it was asked to)
    """A run left early because it was asked to; the same command continues it."""
