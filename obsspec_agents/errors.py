"""The errors this library raises to its users.

::

    ObsSpecError
    ├── ConfigurationError   (ValueError)    a parameter that can't work; names it and its value
    ├── RecordingError       (ValueError)    a recording that is torn, foreign or of another format
    ├── UnknownRequestError  (LookupError)   a committed answer that no recording holds
    ├── MissingExtraError    (ImportError)   a missing optional package; names what installs it
    └── SandboxError         (RuntimeError)  no safe place to run a real model's commands

Nothing of a speculation is ever raised to a run: failures there are events in the trace.
"""

__all__ = [
    "ConfigurationError",
    "MissingExtraError",
    "ObsSpecError",
    "RecordingError",
    "SandboxError",
    "UnknownRequestError",
]


class ObsSpecError(Exception):
    """Base of every error that this library raises."""


class ConfigurationError(ObsSpecError, ValueError):
    """A parameter or a combination of parameters that can't work."""


class RecordingError(ObsSpecError, ValueError):
    """A recording that can't be read: torn, foreign, or of another format version."""


class UnknownRequestError(ObsSpecError, LookupError):
    """A run committed an answer to a request that its recording does not hold."""


class MissingExtraError(ObsSpecError, ImportError):
    """An optional package is missing."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs {package!r}, which is not installed: "
            f"pip install 'obsspec-agents[{extra}]'"
        )


class SandboxError(ObsSpecError, RuntimeError):
    """There is no safe place to run commands that a real model wrote."""
