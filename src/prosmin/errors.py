"""The errors a user can meet. The message says what was received, what is allowed and what to do."""


class ProsminError(Exception):
    """Something a user can fix. The command prints the message and ends with `exit_status`."""

    exit_status = 1


class UsageError(ProsminError, ValueError):
    """A wrong option, field or name."""

    exit_status = 2


class MissingFileError(UsageError, FileNotFoundError):
    """A named file or folder does not exist."""


class Stopped(ProsminError):  # noqa: N818  (not an error: it was asked to stop)
    """A run ended early because it was asked to; the same command continues it."""


class Interrupted(Stopped):
    """Stopped by Ctrl-C; the status is the one that shells give such programs."""

    exit_status = 130
