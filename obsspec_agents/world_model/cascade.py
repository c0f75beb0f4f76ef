"""Several world models, asked in order until one has something to say."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from obsspec_agents.errors import ConfigurationError
from obsspec_agents.observation import Observation
from obsspec_agents.world_model.base import PendingCall, Prediction, RunInfo, WorldModel

__all__ = ["CascadeWorldModel"]


class CascadeWorldModel(WorldModel):
    """The first member with a prediction answers: cheap ones first, costly ones last.

    A member that fails is passed over; its error is raised only when no other answered.
    What calls really returned is told to all of them. As thread-safe as its members.

    Raises:
        ConfigurationError: there are no members, or one is no world model.
    """

    name = "cascade"

    def __init__(self, members: Sequence[WorldModel]) -> None:
        if not isinstance(members, Sequence) or not members:
            raise ConfigurationError(
                f"a cascade needs a sequence of at least one world model, not {members!r}"
            )
        for member in members:
            if not isinstance(member, WorldModel):
                raise ConfigurationError(
                    f"a cascade is made of world models, {member!r} is none; is it a class "
                    "that should be called?"
                )
        self.members = tuple(members)
        self.instant = all(member.instant for member in self.members)

    def predict(self, call: PendingCall) -> Sequence[Prediction]:
        """The predictions of the first member that has any."""
        failure: Exception | None = None
        for member in self.members:
            try:
                if predictions := member.predict(call):
                    return predictions
            except Exception as error:  # noqa: BLE001 - raised below
                failure = failure or error
        if failure is not None:
            raise failure
        return ()

    async def apredict(self, call: PendingCall) -> Sequence[Prediction]:
        """The same, awaited member by member."""
        failure: Exception | None = None
        for member in self.members:
            try:
                if predictions := await member.apredict(call):
                    return predictions
            except Exception as error:  # noqa: BLE001 - raised below
                failure = failure or error
        if failure is not None:
            raise failure
        return ()

    def observe(self, call: PendingCall, observation: Observation) -> None:
        """Tell every member."""
        self._all(lambda member: member.observe(call, observation))

    def end_run(self, run: RunInfo) -> None:
        """Tell every member."""
        self._all(lambda member: member.end_run(run))

    def close(self) -> None:
        """Close every member."""
        self._all(lambda member: member.close())

    def _all(self, do: Callable[[WorldModel], None]) -> None:
        failure: Exception | None = None
        for member in self.members:
            try:
                do(member)
            except Exception as error:  # noqa: BLE001 - raised below
                failure = failure or error
        if failure is not None:
            raise failure
